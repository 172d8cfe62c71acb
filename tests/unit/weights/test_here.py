"""Fetch and verify on this machine alone, without SSH."""

import asyncio
from pathlib import Path

import pytest

from glmspark.config.cluster import Cluster, Node
from glmspark.config.recipe import ModelSource
from glmspark.errors import GlmsparkError
from glmspark.nodes.fleet import Fleet
from glmspark.recipes import __file__ as recipes
from glmspark.weights.fetch import Options, fetch, parts_of, pythons
from glmspark.weights.parts import Layout
from glmspark.weights.verify import verify
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
            nine = Options(endpoint=hub.url, layout=Layout(("here",), 1, 9))
            with pytest.raises(GlmsparkError, match="PP 9 is not possible"):
                await parts_of(fleet, SOURCE, str(place), nine)
            return came, good, bad

    with serving(TINY) as hub:
        came, good, bad = asyncio.run(run(hub))
    assert came.nodes["here"].received == sum(one.stat().st_size for one in TINY.iterdir())
    assert good["here"].good
    assert list(bad["here"].problems) == ["model.safetensors"]
    flip_on_disk(place / "model.safetensors", 5_000_000)
    assert same(TINY, place)
