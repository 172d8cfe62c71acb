"""Parts of a model on several nodes: joined to one checkpoint, and each compared with what its rank needs."""

import json
import os
from pathlib import Path

import pytest

from glmspark.errors import GlmsparkError
from glmspark.launch.partial_models import join_parts
from glmspark.models.files import LocalFiles
from glmspark.models.inspection import inspect
from glmspark.nodes.facts.checkpoint import listing
from glmspark.recipes import __file__ as recipes
from glmspark.weights.parts import Layout, node_parts
from glmspark.weights.relay.parts import Part, cut

TINY = Path(recipes).parent / "checkpoints" / "glm-tiny"
INDEX = "model.safetensors.index.json"
LAYOUT = Layout(("n1", "n2", "n3"), 1, 3)


def store(directory: Path, layout: Layout = LAYOUT) -> dict[str, Path]:
    """The parts of glm-tiny by node."""
    wanted = node_parts(inspect(LocalFiles(TINY)), layout, "path:/model")
    found = {}
    with (TINY / "model.safetensors").open("rb") as whole:
        for node, part in wanted.items():
            place = found[node] = directory / node
            place.mkdir(parents=True)
            for one in TINY.glob("*.json"):
                (place / one.name).write_bytes(one.read_bytes())
            (place / INDEX).write_text(part.index)
            for name, spans in part.shards.items():
                assert spans is not None
                cut(whole.fileno(), place / name, Part(spans.header, spans.spans), "blake2b")
    return found


def join(places: dict[str, Path], layout: Layout = LAYOUT):
    import subprocess
    import sys

    heads, listed = {}, {}
    for node, place in places.items():
        heads[node] = {
            one.name: (one.stat().st_size, one.read_bytes())
            for one in place.iterdir()
            if one.suffix in (".safetensors", ".json")
        }
        fact = listing(str(place))
        command = [sys.executable, *fact.command[1:]]
        listed[node] = fact.parse(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return join_parts(heads, listed, "path:/model", "/model", layout)


def test_parts_are_one_checkpoint(tmp_path):
    joined = join(store(tmp_path))
    assert {one.name for one in joined.tensors} == {
        name for name in inspect(LocalFiles(TINY)).content.tensors if ".layers.4." not in name
    }
    assert not joined.has_mtp


def test_a_part_is_told_from_what_is_not_whole(tmp_path):
    problems = {one.rule: one.seen for one in inspect(LocalFiles(store(tmp_path)["n2"])).problems}
    assert problems.keys() == {"part-of-a-model", "chat-template-missing"}  # no template was copied here
    assert "what rank 1 of TP1 PP3 needs" in problems["part-of-a-model"]


def test_a_whole_copy_is_as_good_as_a_part(tmp_path):
    places = store(tmp_path)
    for one in TINY.iterdir():
        (places["n2"] / one.name).write_bytes(one.read_bytes())
    for one in ("README.md", "chat_template.jinja"):
        (places["n2"] / one).unlink(missing_ok=True)
    (places["n2"] / INDEX).unlink()
    assert join(places).has_mtp


@pytest.mark.parametrize(
    ("layout", "said", "host"),
    [
        (Layout(("n1", "n3", "n2"), 1, 3), "rank 1 needs layers 1-2", "n3"),
        (Layout(("n1", "n2"), 1, 2), "rank 0 needs layers 0-1", "n1"),
    ],
)
def test_a_rank_without_what_it_needs_is_named(tmp_path, layout, said, host):
    with pytest.raises(GlmsparkError, match=said) as raised:
        join(store(tmp_path), layout)
    assert raised.value.host == host
    assert "--only-needed" in str(raised.value.next)


def test_what_is_not_of_one_revision_is_refused(tmp_path):
    places = store(tmp_path)
    index = places["n3"] / INDEX
    told = json.loads(index.read_text())
    told["metadata"]["glmspark"]["of"]["model.safetensors"][1] = "0" * 64
    index.write_text(json.dumps(told))
    with pytest.raises(GlmsparkError, match="another revision on n3"):
        join(places)
    (tmp_path / "again").mkdir()
    places = store(tmp_path / "again")
    (places["n2"] / "config.json").write_text("{}")
    with pytest.raises(GlmsparkError, match="not the same on n1 and n2: config"):
        join(places)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_copy_that_is_cut_short_is_named(tmp_path, node):
    """Two nodes need the same part (TP within a stage): one of them being whole is not enough."""
    layout = Layout(("n1", "n2", "n3", "n4"), 2, 2)
    places = store(tmp_path, layout)
    os.truncate(places[node] / "model.safetensors", (places[node] / "model.safetensors").stat().st_size - 1)
    with pytest.raises(GlmsparkError, match="is truncated: 1 of") as raised:
        join(places, layout)
    assert raised.value.host == node


def test_an_index_that_names_what_is_not_there(tmp_path):
    places = store(tmp_path)
    (places["n2"] / INDEX).write_bytes((places["n1"] / INDEX).read_bytes())
    with pytest.raises(GlmsparkError, match="tensors that are not there") as raised:
        join(places)
    assert raised.value.host == "n2"
