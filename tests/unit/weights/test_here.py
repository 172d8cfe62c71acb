"""Fetch and verify on this machine alone, without SSH."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from glmspark.config.cluster import Cluster, Node
from glmspark.config.recipe import ModelSource
from glmspark.errors import GlmsparkError
from glmspark.nodes.fleet import Fleet
from glmspark.recipes import __file__ as recipes
from glmspark.weights.archive import heard
from glmspark.weights.fetch import Options, fetch, parts_of, pythons
from glmspark.weights.parts import Layout
from glmspark.weights.relay.digest import CHUNK
from glmspark.weights.verify import verify
from tests.unit.models.test_inspection import seed
from tests.unit.weights.hub import REPOSITORY, serving
from tests.unit.weights.relays import flip_on_disk, same

TINY = Path(recipes).parent / "checkpoints" / "glm-tiny"
HERE = Cluster(cluster=1, nodes=(Node(name="here", address="127.0.0.1"),))
SOURCE = ModelSource("hf", REPOSITORY, "main")


def test_a_model_comes_here_is_verified_and_mended(tmp_path, monkeypatch):
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path / "state"))
    place = tmp_path / "model"

    async def run(hub):
        async with Fleet({"here": None}) as fleet:
            options = Options(endpoint=hub.url)
            came = await fetch(fleet, HERE, SOURCE, str(place), options)
            good = await verify(fleet, str(place), pythons=pythons(HERE))
            flip_on_disk(place / "model.safetensors", 5_000_000)
            bad = await verify(fleet, str(place), pythons=pythons(HERE))
            mended = await fetch(fleet, HERE, SOURCE, str(place), options)
            nine = Options(endpoint=hub.url, layout=Layout(("here",), 1, 9))
            with pytest.raises(GlmsparkError, match="PP 9 is not possible"):
                await parts_of(fleet, SOURCE, str(place), nine)
            return came, good, bad, mended

    with serving(TINY) as hub:
        came, good, bad, mended = asyncio.run(run(hub))
    assert came.nodes["here"].received == sum(one.stat().st_size for one in TINY.iterdir())
    assert good["here"].good
    assert list(bad["here"].problems) == ["model.safetensors"]
    # The hub has one hash of all of a file; which chunk of it is damaged, the hashes kept here say.
    assert mended.nodes["here"].received == CHUNK
    assert same(TINY, place)


def test_a_hub_without_hashes_is_not_believed(tmp_path, monkeypatch):
    """Of a file that is there only its size could be compared, and a damaged one would stay."""
    monkeypatch.setattr("tests.unit.weights.hub.hashes", lambda _: {})

    async def run(hub):
        async with Fleet({"here": None}) as fleet:
            await fetch(fleet, HERE, SOURCE, str(tmp_path / "model"), Options(endpoint=hub.url))

    with serving(TINY) as hub, pytest.raises(GlmsparkError, match="states no hash of 8 files"):
        asyncio.run(run(hub))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["here", "hub"])
def test_what_is_not_whole_is_not_spread(tmp_path, where):
    """Where no hub says what belongs to it, a copy that broke off would go to every node."""
    directory = seed().write(tmp_path / "m")
    index = directory / "model.safetensors.index.json"
    if where == "here":
        (directory / "model-00002-of-00002.safetensors").unlink()
        expected = f"{directory} is not whole: the index names 1 shards that do not exist"
    else:
        said = json.loads(index.read_text())
        mark = {"rank": 1, "tp": 1, "pp": 3, "of": {}}
        index.write_text(json.dumps({**said, "metadata": {"glmspark": mark}}))
        expected = "is a part of a model: what rank 1 of TP1 PP3 needs"
    before = sorted(directory.iterdir())

    source = SOURCE if where == "hub" else ModelSource("path", str(directory))

    async def run(options):
        async with Fleet({"here": None}) as fleet:
            await fetch(fleet, HERE, source, str(directory), options)

    with serving(directory) as hub, pytest.raises(GlmsparkError, match=expected):
        asyncio.run(run(Options(endpoint=hub.url)))
    assert sorted(directory.iterdir()) == before


def test_what_the_login_shell_says_is_none_of_the_relays():
    assert heard(b"Welcome to spark1\n") == heard(b"[1]\n") == heard(b"\xff\n") == {}
    assert heard(b'{"t": "done"}\n') == {"t": "done"}


def test_what_lies_here_already_gets_its_hashes(tmp_path, monkeypatch):
    """Else `verify` would send people to `fetch`, and `fetch` would do nothing."""
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path / "state"))
    place = tmp_path / "model"
    shutil.copytree(TINY, place)

    async def run():
        async with Fleet({"here": None}) as fleet:
            came = await fetch(fleet, HERE, ModelSource("path", str(place)), str(place), Options())
            return came, await verify(fleet, str(place), pythons=pythons(HERE))

    came, good = asyncio.run(run())
    size = sum(one.stat().st_size for one in TINY.iterdir())
    assert (came.nodes["here"].verified, came.nodes["here"].total) == (size, size)
    assert good["here"].good
    assert (good["here"].verified, good["here"].unhashed) == (size, 0)
