"""`glmspark models` and `glmspark fetch`, as far as they go without nodes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glmspark.config.cluster import Paths
from glmspark.nodes.fleet import Fleet
from glmspark.weights import verify
from glmspark.weights.verify import StoredModel
from tests.unit.cli.commands import Glmspark
from tests.unit.nodes.sparks import CLUSTER

MODEL = StoredModel("/models/m", 3, 10**9, 0, False, True)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster file whose nodes all have a model, and cannot be reached."""

    class Nowhere:
        def __init__(self, addresses: Any) -> None:
            self.nodes: dict[str, Any] = {}
            self.lost: dict[str, Any] = {}

        async def __aenter__(self) -> Nowhere:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    async def listed(*_: object) -> dict[str, dict[str, StoredModel]]:
        return {"spark1": {"m": MODEL}, "spark2": {"m": MODEL}}

    monkeypatch.setattr("glmspark.nodes.fleet.Fleet", Nowhere)
    monkeypatch.setattr("glmspark.weights.verify.list_models", listed)
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def removing(monkeypatch: pytest.MonkeyPatch, state: dict[str, Any]) -> list[str]:
    """What is removed, where one deployment is in this state."""
    removed: list[str] = []

    async def states(*_: object, **__: object) -> dict[str, list[dict[str, Any]]]:
        return {"spark1": [state]}

    async def remove(_: object, where: dict[str, StoredModel]) -> dict[str, None]:
        removed.extend(where)
        return dict.fromkeys(where)

    monkeypatch.setattr("glmspark.launch.agents.Agents.all_states", states)
    monkeypatch.setattr("glmspark.weights.verify.remove_model", remove)
    return removed


@pytest.mark.parametrize(
    ("alive", "path", "stays"),
    [
        (True, "/models/m", True),
        (True, "--volume=/models/m:/models/m:ro", True),
        (True, "/models/m/config.json", True),
        (True, "/models/n", False),
        (True, "/models/m@main", False),
        (True, "/models/m.old", False),
        (False, "/models/m", False),
    ],
)
def test_what_a_deployment_uses_stays(
    glmspark: Glmspark, cluster: Path, monkeypatch: pytest.MonkeyPatch, alive: bool, path: str, stays: bool
) -> None:
    state = {"name": "big", "alive": alive, "record": {"ranks": [{"command": ["serve", path]}]}}
    removed = removing(monkeypatch, state)
    done = glmspark("models", "rm", "m", "--cluster", cluster, "--yes")
    assert done.code == int(stays)
    assert removed == ([] if stays else ["spark1", "spark2"])
    if stays:
        assert "big uses it" in done.err


def test_what_is_in_use_has_a_name_of_any_letters(
    glmspark: Glmspark, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(*_: object) -> dict[str, dict[str, StoredModel]]:
        return {"spark1": {"m": StoredModel("/modèles/m", 3, 10**9, 0, False, True)}}

    removed = removing(monkeypatch, {"name": "big", "alive": True, "record": {"argv": ["/modèles/m"]}})
    monkeypatch.setattr("glmspark.weights.verify.list_models", listed)
    assert glmspark("models", "rm", "m", "--cluster", cluster, "--yes").code == 1
    assert not removed


def test_models_are_shown(glmspark: Glmspark, cluster: Path) -> None:
    done = glmspark("models", "list", "--cluster", cluster)
    assert (done.code, done.out.count("953.7 MiB")) == (0, 2)
    assert glmspark("models", "list", "--cluster", cluster, "--json").json["spark2"]["m"]["files"] == 3


def test_a_model_without_hashes_says_who_looks_after_it(
    glmspark: Glmspark, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(*_: object) -> dict[str, dict[str, StoredModel]]:
        plain = StoredModel("/models/m", 3, 10**9, 0, False, False)
        return {"spark1": {"m": plain}, "spark2": {"glm-tiny": plain}}

    monkeypatch.setattr("glmspark.weights.verify.list_models", listed)
    one, other = glmspark("models", "list", "--cluster", cluster).out.splitlines()[1:]
    assert "no hashes: `glmspark fetch` verifies it" in one
    assert "comes with glmspark" in other  # fetch refuses it
    assert "fetch" not in other


def test_a_model_that_is_not_there(glmspark: Glmspark, cluster: Path) -> None:
    done = glmspark("models", "rm", "x", "--cluster", cluster, "--yes")
    assert done.code == 2
    assert "there are m" in done.err


def test_fetch_says_what_it_cannot_use(glmspark: Glmspark, cluster: Path) -> None:
    assert "comes with glmspark" in glmspark("fetch", "glm-tiny", "--cluster", cluster).err
    assert "--rate" in glmspark("fetch", "glm-tiny", "--cluster", cluster, "--rate", "fast").err
    for rate in ("0", "0MB", "100KB"):  # for which one would wait for ever
        assert "--rate" in glmspark("fetch", "glm-5.2-4x-mtp", "--cluster", cluster, "--rate", rate).err
    assert glmspark("verify", "glm-tiny", "--cluster", cluster).code == 2
    assert "`glmspark up glm-tiny` starts it" in glmspark("fetch", "glm-tiny").err
    assert "--only-needed" in glmspark("fetch", "glm-5.2-4x-mtp", "--pp", "2").err
    said = glmspark("fetch", "glm-5.2-4x-mtp", "--only-needed", "--tp", "1")
    assert "nothing would be saved" in said.err
    assert "too few" in glmspark("fetch", "glm-5.2-4x-mtp", "--only-needed").err


def test_a_model_that_another_links_into_stays(
    glmspark: Glmspark, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(*_: object) -> dict[str, dict[str, StoredModel]]:
        linking = StoredModel("/models/n", 3, 0, 10**9, False, True, ["m"])
        return {"spark1": {"m": MODEL}, "spark2": {"m": MODEL, "n": linking}}

    removed = removing(monkeypatch, {})
    monkeypatch.setattr("glmspark.weights.verify.list_models", listed)
    refused = glmspark("models", "rm", "m", "--cluster", cluster, "--yes")
    assert refused.code == 2
    assert "n links to files of m" in refused.err
    assert not removed
    assert glmspark("models", "rm", "n", "--cluster", cluster, "--yes").code == 0


def test_what_lies_below_paths_models(tmp_path: Path) -> None:
    others = {"none": "README", "begun": "model-00001-of-00002.safetensors", ".removing-old": "x"}
    for name in ("whole", "part", "linking", "none", "begun", ".removing-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / (others.get(name, "config.json"))).write_text("{}")
    mark = {"rank": 1, "tp": 1, "pp": 3, "of": {}}
    index = {"metadata": {"glmspark": mark}, "weight_map": {}}
    (tmp_path / "part" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "whole" / "a.safetensors").write_bytes(bytes(5000))
    (tmp_path / "linking" / "a.safetensors").symlink_to("../whole/a.safetensors")
    (tmp_path / "linking" / "config.json").unlink()
    (tmp_path / "linking" / "config.json").symlink_to("/dev/null")
    done = subprocess.run(
        [sys.executable, "-c", verify._SCAN, str(tmp_path)], capture_output=True, text=True, check=True
    )
    root, found = verify._parse(done.stdout)
    assert root == str(tmp_path)
    # Whoever needs room sees all that takes it: also what was broken off between two files, or while it went.
    assert found.keys() == {"whole", "part", "linking", "begun", ".removing-old"}
    assert [name for name, one in found.items() if one.partial] == [".removing-old", "begun"]
    assert (found["linking"].linked, found["linking"].into) == (5000, ["whole"])
    assert found["part"].part == [1, 1, 3]
    assert found["whole"].part is None
    assert not found["whole"].into


def test_a_model_goes_whole_and_not_from_under_a_process(tmp_path: Path) -> None:
    """Without a record of it: started by hand, or by another machine's glmspark."""
    path = tmp_path / "m"
    where = {"here": StoredModel(str(path), 1, 1, 0, False, True)}
    for left in (path, tmp_path / ".removing-m"):
        left.mkdir()
        (left / "config.json").write_text("{}")

    async def remove() -> Any:
        async with Fleet({"here": None}) as fleet:
            return (await verify.remove_model(fleet, where))["here"]

    words = [sys.executable, "-c", "input()", "serve", f"--model={path}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as user:
        error = asyncio.run(remove())
        assert f"process {user.pid} uses {path}" in str(error)
        assert path.is_dir()
        assert user.stdin is not None
        user.stdin.write(b"\n")
    with subprocess.Popen([*words[:-1], f"--model={path}-2"], stdin=subprocess.PIPE) as other:
        assert asyncio.run(remove()) is None
        assert other.stdin is not None
        other.stdin.write(b"\n")
    assert list(tmp_path.iterdir()) == []


def test_this_machine_has_models_too(
    glmspark: Glmspark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `fetch` without a cluster file brings here."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path / "state"))
    models = Path(Paths().models).expanduser()
    assert models.is_relative_to(tmp_path)
    (models / "m").mkdir(parents=True)
    (models / "m" / "config.json").write_text("{}")
    assert list(glmspark("models", "list", "--json").json["here"]) == ["m"]
    done = glmspark("models", "rm", "m", "--yes")
    assert (done.code, done.err) == (0, "")
    assert not (models / "m").exists()
