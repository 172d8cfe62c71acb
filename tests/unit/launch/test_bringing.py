"""Image and model on every node: where they are, what is missing, what must not be mixed. The lock file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.recipe import ModelSource
from glmspark.errors import GlmsparkError, StateError, UsageError
from glmspark.launch import images
from glmspark.launch.environments import judge_environments
from glmspark.launch.lockfile import DriftError, drift, patch_hashes, read_lock, refuse_drift, write_lock
from glmspark.launch.node_models import Model, local_listing, place_of
from glmspark.launch.room import check_room
from glmspark.models import inspect_checkpoint, locate
from glmspark.nodes.facts.account import Account, parse_account, parse_board
from glmspark.nodes.facts.checkpoint import Listing, StoredFile, heads, listing, parse_heads, parse_listing
from glmspark.nodes.facts.disks import DISKS, Disk
from glmspark.nodes.facts.docker import IMAGES, Image
from glmspark.nodes.facts.engine import EngineVersions, engine, parse_engine
from glmspark.nodes.survey import Facts, Reading

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def nodes(*ids: str | None) -> dict[str, Facts]:
    """Nodes of which each has the image i:1 with that id, or has it not."""
    return {
        f"spark{i + 1}": Facts(f"spark{i + 1}", {IMAGES.name: Reading((Image(one, "i:1"),) if one else ())})
        for i, one in enumerate(ids)
    }


def test_where_an_image_is() -> None:
    found = images.look_at_images("i:1", nodes(None, A, None))
    assert (found.id, found.source, found.missing) == (A, "spark2", ("spark1", "spark3"))
    nowhere = images.look_at_images("i:1", nodes(None, None))
    assert (nowhere.id, nowhere.source, nowhere.missing) == (None, None, ("spark1", "spark2"))


@pytest.mark.parametrize(
    ("ids", "named"),
    [((A, B), "spark2"), ((B, A, A), "spark1"), ((A, None, B), "spark3"), ((A, B, B), "spark1")],
)
def test_another_image_under_the_same_name(ids: tuple[str | None, ...], named: str) -> None:
    with pytest.raises(GlmsparkError, match="not the same image") as caught:
        images.look_at_images("i:1", nodes(*ids))
    assert caught.value.host == named
    assert "aaaaaaaaaaaa on" in caught.value.message


def test_images_that_cannot_be_listed() -> None:
    facts = {"spark1": Facts("spark1", {IMAGES.name: Reading(None, "docker is not installed")})}
    with pytest.raises(GlmsparkError, match="docker is not installed"):
        images.look_at_images("i:1", facts)


def test_commands_of_an_image_s_way() -> None:
    assert images.save("i:1") == ["docker", "save", "i:1"]
    assert images.load() == ["docker", "load", "--quiet"]
    assert images.pull("i:1") == ["docker", "pull", "--quiet", "i:1"]


def test_room_is_looked_for_where_it_will_lie() -> None:
    disks = (Disk("/dev/a", "ext4", 100, 90, "/"), Disk("/dev/b", "ext4", 100, 10, "/data"))
    facts = Facts("spark1", {DISKS.name: Reading(disks)})
    check_room("spark1", facts, "/home/me", 50, "model x")
    with pytest.raises(GlmsparkError, match="model x takes 50 B, and /data has 10 B free"):
        check_room("spark1", facts, "/data/models", 50, "model x")
    check_room("spark1", Facts("spark1", {}), "/data/models", 50, "model x")


def account(home: str) -> Account:
    return Account(home, "me", 1000, 1000)


@pytest.mark.parametrize(
    ("source", "models", "place"),
    [
        (ModelSource("package", "glm-tiny"), "~/models", "/home/me/models/glm-tiny"),
        (ModelSource("path", "/data/m/"), "~/models", "/data/m"),
        (ModelSource("path", "~/m"), "/models", "/home/me/m"),
        (ModelSource("hf", "org/name", "main"), "/models", "/models/org--name@main"),
        # One level deep, else `models list` would not see it.
        (ModelSource("hf", "org/name", "refs/pr/3"), "/models", "/models/org--name@refs--pr--3"),
    ],
)
def test_the_place_of_a_model(source: ModelSource, models: str, place: str) -> None:
    assert place_of(source, models, {"a": account("/home/me"), "b": account("/home/me")}) == place


def test_home_must_be_the_same_place_everywhere() -> None:
    with pytest.raises(GlmsparkError, match="not the same directory on every node"):
        place_of(ModelSource("path", "~/m"), "/m", {"a": account("/home/a"), "b": account("/home/b")})


def test_a_listing_tells_copies_apart(tmp_path: Path) -> None:
    source = locate(ModelSource("package", "glm-tiny"))
    shutil.copytree(source, tmp_path / "m")
    wanted = local_listing(source)
    assert local_listing(tmp_path / "m") == wanted
    model = Model(inspect_checkpoint(source), {"a": wanted, "b": Listing(False)}, wanted, source)
    assert model.lacking == ("b",)
    with (tmp_path / "m/model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\0" if file.read(1) else b"\1")
    assert wanted.differs(local_listing(tmp_path / "m")) == ["model.safetensors"]


def run(command: tuple[str, ...]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_headers_alone_tell_a_model(tmp_path: Path) -> None:
    source = locate(ModelSource("package", "glm-tiny"))
    found = parse_listing(run(listing(str(source)).command))
    begun = parse_heads(run(heads(str(source), ("config.json", "model.safetensors")).command))
    for name, (size, data) in begun.items():
        with (tmp_path / name).open("wb") as file:
            file.write(data)
            file.truncate(size)
    assert len(begun["model.safetensors"][1]) < 100_000
    assert inspect_checkpoint(tmp_path).nbytes == inspect_checkpoint(source).nbytes
    assert {one.name: one.size for one in found.files}["model.safetensors"] == begun["model.safetensors"][0]


def test_a_link_that_leads_nowhere_and_a_directory_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").symlink_to("../blobs/gone")
    (one,) = parse_listing(run(listing(str(tmp_path)).command)).files
    assert one.dangling.endswith("blobs/gone")
    assert parse_listing(run(listing(str(tmp_path / "none")).command)) == Listing(False)
    assert Listing(True, (one,)).differs(Listing(True, (StoredFile("a.safetensors", 1, "x"),))) == [
        "a.safetensors"
    ]


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', "[[1]]"])
def test_what_is_no_listing(text: str) -> None:
    for parse in (parse_listing, parse_heads):
        with pytest.raises(ValueError):  # noqa: PT011 - json's own among them
            parse(text)


def test_accounts_and_machines() -> None:
    assert parse_account("/home/me\nme\n1000\n1001\n") == Account("/home/me", "me", 1000, 1001)
    assert parse_board("btime 17\nMemTotal:       5 kB\n") == "MemTotal: 5 kB, btime 17"
    for wrong in ("", "me\n", "/home/me\nme\nx\n1\n"):
        with pytest.raises(ValueError, match="expected"):
            parse_account(wrong)
    with pytest.raises(ValueError, match="btime"):
        parse_board("btime 17\n")


def test_environments_are_there_whole_and_alike() -> None:
    one = EngineVersions("0.1.0", "0.32.0", "2.13.0")
    judge_environments("/e", {"a": one, "b": one})
    with pytest.raises(GlmsparkError, match=r"vllm is 0\.33\.0 here and 0\.32\.0 on a") as caught:
        judge_environments("/e", {"a": one, "b": replace(one, vllm="0.33.0")})
    assert caught.value.host == "b"
    with pytest.raises(GlmsparkError, match="/e has no vllm and no torch"):
        judge_environments("/e", {"a": one, "b": replace(one, vllm=None, torch=None)})


def test_the_engine_of_this_very_environment() -> None:
    found = engine(sys.executable)
    assert found.parse(run(found.command)).glmspark
    assert parse_engine('{"glmspark": "1", "vllm": null, "torch": "2"}') == EngineVersions("1", None, "2")
    for wrong in ("", "{}", "[]"):
        with pytest.raises(ValueError):  # noqa: PT011 - json's own among them
            parse_engine(wrong)


# -- the lock file -----------------------------------------------------------------------------------------

LOCK: dict[str, Any] = {
    "lock": 1,
    "runtime": {"id": A, "venv": None},
    "nodes": {"spark1": {"kernel": "6.17", "driver": "580"}, "spark2": {"kernel": "6.17", "driver": None}},
    "patches": {"one": "11", "two": "22"},
}


def changed(**places: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(LOCK))
    for dotted, value in places.items():
        *path, last = dotted.split("__")
        place = data
        for key in path:
            place = place[key]
        place[last] = value
    return data


def test_drift_is_said_by_its_place() -> None:
    assert drift(LOCK, changed()) == []
    assert drift(LOCK, changed(nodes__spark2__kernel="7.0")) == [
        "nodes.spark2.kernel is 7.0, the lock file says 6.17"
    ]
    assert drift(LOCK, changed(patches__three="33")) == [
        "patches.three is 33 now, and there is none in the lock file"
    ]
    assert drift(changed(patches__three="33"), LOCK) == [
        "patches.three is 33 in the lock file, and there is none now"
    ]
    assert drift(LOCK, changed(runtime__id=None)) == []  # not known yet
    assert drift(LOCK, changed(nodes__spark2__driver="580")) == []


def test_drift_is_refused_and_names_the_node() -> None:
    refuse_drift(LOCK, changed(), Path("l.json"))
    with pytest.raises(DriftError, match=r"2 things are not as in l\.json") as caught:
        refuse_drift(LOCK, changed(nodes__spark2__kernel="7.0", runtime__id=B), Path("l.json"))
    assert caught.value.host == "spark2"
    assert "--lock FILE" in str(caught.value.next)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(json_values)
def test_nothing_drifts_from_itself(value: Any) -> None:
    assert drift({"a": value}, {"a": value}) == []


def test_a_lock_comes_back(tmp_path: Path) -> None:
    write_lock(tmp_path / "lock.json", LOCK)
    assert read_lock(tmp_path / "lock.json") == LOCK
    (tmp_path / "other.json").write_text('{"lock": 2}')
    with pytest.raises(UsageError, match="not a lock file"):
        read_lock(tmp_path / "other.json")
    with pytest.raises(StateError):
        read_lock(tmp_path / "none.json")


def test_every_patch_has_a_hash() -> None:
    from glmspark.engine.registry import PATCHES

    found = patch_hashes()
    assert found.keys() == {patch.name for patch in PATCHES}
    assert len(set(found.values())) == len(found)
