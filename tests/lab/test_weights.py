"""Weights on virtual Sparks: along the chain, verified, listed, removed; and what goes wrong on the way."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import glmspark
from tests.lab.virtual import VirtualSparks

MIB = 24
FIRST, SECOND, THIRD = "spark1", "spark2", "spark3"
MAKE = """\
import os, sys
os.makedirs(sys.argv[1], exist_ok=True)
for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
    with open(sys.argv[1] + "/" + name, "wb") as file:
        for _ in range(int(sys.argv[2])):
            file.write(os.urandom(1 << 20))
for name in ("tokenizer.json", "config.json"):
    open(sys.argv[1] + "/" + name, "w").write("{}")
"""


class Model:
    """A model on the first node, and a recipe that names it. models: paths.models of its cluster file."""

    def __init__(self, lab: VirtualSparks, directory: Path, models: str = "/home/spark/models") -> None:
        self.lab = lab
        self.models = models
        self.place = f"{models}/{directory.name}"
        lab.shell(FIRST, "python3", "-c", MAKE, self.place, str(MIB))
        recipe = (Path(glmspark.__file__).parent / "recipes" / "glm-tiny.yaml").read_text()
        self.recipe = directory / "model.yaml"
        self.recipe.write_text(recipe.replace("package:glm-tiny", f"path:{self.place}"))
        text = lab.home.cluster_file.read_text().replace("models: /home/spark/models", f"models: {models}")
        self.cluster = directory / "cluster.yaml"
        self.cluster.write_text(text)

    def run(self, verb: str, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        return self.lab.glmspark(
            verb, str(self.recipe), "--cluster", str(self.cluster), "--json", *words, ok=ok, timeout=120
        )

    def fetch(self, *words: str) -> dict[str, Any]:
        (done,) = json.loads(self.run("fetch", *words).stdout).values()
        return {one["node"]: one for one in done["nodes"]}

    def sums(self, node: str) -> str:
        script = f"cd {self.place} && sha256sum *.safetensors *.json"
        return self.lab.shell(node, "sh", "-c", script)

    def relays(self, node: str) -> list[str]:
        """Processes of relays on a node."""
        return self.lab.inside(node, "pgrep", "-f", r"relay-[0-9a-f]*\.pyz run").stdout.split()


@pytest.fixture
def model(lab: VirtualSparks, tmp_path: Path):
    made = Model(lab, tmp_path)
    yield made
    for node in (FIRST, SECOND, THIRD):
        lab.shell(node, "rm", "-rf", made.place)
        assert made.relays(node) == []


def test_every_node_gets_it_and_nothing_comes_twice(model: Model) -> None:
    size = 2 * MIB * 2**20 + 4
    nodes = model.fetch()
    assert {name: one["received"] for name, one in nodes.items()} == {FIRST: 0, SECOND: size, THIRD: size}
    # The first node sends it once: the second passes it on.
    assert nodes[FIRST]["sent"] == size
    assert nodes[SECOND]["sent"] == size
    assert model.sums(FIRST) == model.sums(SECOND) == model.sums(THIRD)
    again = model.fetch("--trusted-fabric")
    assert [again[name]["received"] for name in (SECOND, THIRD)] == [0, 0]
    verified = json.loads(model.run("verify").stdout)[model.place]
    assert [one["good"] for one in verified] == [True, True, True]
    assert {one["bytes"] for one in verified} == {size}


def test_damage_is_named_and_mended(model: Model) -> None:
    model.fetch()
    shard = f"{model.place}/model-00002-of-00002.safetensors"
    model.lab.shell(THIRD, "sh", "-c", f"printf X | dd of={shard} bs=1 seek=9000000 conv=notrunc status=none")
    done = model.run("verify", ok=False)
    assert done.returncode == 1
    problems = {one["node"]: one["problems"] for one in json.loads(done.stdout)[model.place]}
    assert problems == {
        FIRST: {},
        SECOND: {},
        THIRD: {Path(shard).name: "1 of 6 chunks are damaged, the first at byte 8388608"},
    }
    assert model.fetch()[THIRD]["received"] == 4 << 20
    assert model.sums(FIRST) == model.sums(THIRD)


def test_a_relay_that_is_killed_and_a_link_that_is_cut(model: Model) -> None:
    """Both while the weights go over, at 10 MB/s: 5 s."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(model.fetch("--rate", "10MB")))
    thread.start()
    _until(lambda: model.relays(SECOND))
    time.sleep(1.5)
    model.lab.shell(SECOND, "kill", "-9", *model.relays(SECOND))
    time.sleep(1.5)
    model.lab.lab("cut", THIRD)
    time.sleep(1)
    model.lab.lab("mend", THIRD)
    thread.join()
    (nodes,) = found
    size = 2 * MIB * 2**20 + 4
    assert nodes[SECOND]["restarts"] == 1
    assert nodes[SECOND]["received"] + nodes[SECOND]["reused"] == size
    assert model.sums(FIRST) == model.sums(SECOND) == model.sums(THIRD)


def test_a_full_disk_is_told_before_and_what_came_is_kept(lab: VirtualSparks, tmp_path: Path) -> None:
    models = f"/home/spark/small-{tmp_path.name[-12:]}"
    lab.shell(THIRD, "mkdir", "-p", models)
    lab.inside(THIRD, "mount", "-t", "tmpfs", "-o", "size=32m,mode=777", "none", models, root=True)
    try:
        model = Model(lab, tmp_path, models)
        error = json.loads(model.run("fetch", ok=False).stdout)
        assert error["host"] == THIRD
        assert "bytes free" in error["error"]
        assert "make room" in error["next"]
        # Filled while it goes on, in the middle of a chunk.
        lab.inside(THIRD, "mount", "-o", "remount,size=256m", "none", models, root=True)

        def fill() -> None:
            _until(lambda: ".part" in lab.inside(THIRD, "ls", "-A", model.place).stdout)
            time.sleep(1.5)
            lab.inside(THIRD, "dd", "if=/dev/zero", f"of={models}/x", "bs=1M")

        filler = threading.Thread(target=fill)
        filler.start()
        error = json.loads(model.run("fetch", "--rate", "10MB", ok=False).stdout)
        filler.join()
        assert (error["host"], error["step"]) == (THIRD, "write the weights")
        assert "No space left" in error["error"]
        kept = int(lab.shell(THIRD, "du", "-sm", "--exclude=x", models).split()[0])
        assert kept >= 8
        lab.shell(THIRD, "rm", f"{models}/x")
        again = model.fetch()[THIRD]
        assert again["reused"] >= (kept - 5) << 20
        assert again["received"] + again["reused"] == 2 * MIB * 2**20 + 4
        assert model.fetch()[THIRD]["verified"] == 2 * MIB * 2**20 + 4
    finally:
        lab.inside(THIRD, "umount", models, root=True)
        for node in (FIRST, SECOND, THIRD):
            lab.shell(node, "rm", "-rf", models)


def test_models_are_listed_and_removed(model: Model) -> None:
    model.fetch()
    name = Path(model.place).name
    words = ("--cluster", str(model.cluster), "--json")
    listed = json.loads(model.lab.glmspark("models", "list", *words).stdout)
    assert {listed[node][name]["hashed"] for node in (FIRST, SECOND, THIRD)} == {True}
    assert all(listed[node][name]["nbytes"] >= 2 * MIB * 2**20 for node in listed)
    removed = json.loads(model.lab.glmspark("models", "rm", name, *words, "--yes").stdout)
    assert removed["nodes"] == [FIRST, SECOND, THIRD]
    assert name not in json.loads(model.lab.glmspark("models", "list", *words).stdout)[FIRST]
    again = model.lab.glmspark("models", "rm", name, *words, "--yes", ok=False)
    assert again.returncode == 2


def _until(true: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)
