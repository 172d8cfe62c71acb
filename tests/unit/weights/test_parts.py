"""`--only-needed`: each node stores what its rank needs, and another layout fetches the difference."""

import json
from pathlib import Path

import pytest

from glmspark.config import load_recipe
from glmspark.models import inspect_checkpoint
from glmspark.models.files import LocalFiles
from glmspark.models.inspection import inspect
from glmspark.models.outline import outline_of
from glmspark.models.safetensors import read_header
from glmspark.plan.split import places
from glmspark.plan.stored import stored_bytes
from glmspark.recipes import __file__ as recipes
from glmspark.weights.parts import Layout, NodePart, chain_parts, is_part, needed_names, node_parts
from glmspark.weights.relay.digest import CHUNK
from glmspark.weights.spread import HubSource
from glmspark.weights.ways import Ways
from tests.unit.weights.hub import COMMIT, REPOSITORY, serving
from tests.unit.weights.relays import Relay, flip_on_disk, model, new_key, program
from tools.headers import write

TINY = Path(recipes).parent / "checkpoints" / "glm-tiny"
NODES = ("n1", "n2", "n3")
INDEX = "model.safetensors.index.json"


def tensors(directory: Path) -> dict[str, bytes]:
    """The bytes of every tensor that the index (or, without one, any shard) has."""
    index = directory / INDEX
    said = json.loads(index.read_bytes())["weight_map"] if index.exists() else None
    found = {}
    for shard in directory.glob("*.safetensors"):
        data = shard.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, info in read_header(shard).items():
            if said is None or said.get(name) == shard.name:
                found[name] = data[begin + info.begin : begin + info.end]
    assert said is None or found.keys() == said.keys()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """glm-tiny in three shards that end in the middle of layers, one of them of several chunks."""
    directory = tmp_path_factory.mktemp("whole") / "model"
    directory.mkdir()
    for one in TINY.iterdir():
        if one.suffix not in {".safetensors", ".md"}:
            (directory / one.name).write_bytes(one.read_bytes())
    raw = (TINY / "model.safetensors").read_bytes()
    header = read_header(TINY / "model.safetensors")
    begin = 8 + int.from_bytes(raw[:8], "little")
    names = sorted(header, key=lambda name: header[name].begin)
    weight_map = {}
    for number, mine in enumerate((names[:5], names[5:-7], names[-7:]), 1):
        shard, place, described, data = f"model-{number}.safetensors", 0, {}, []
        for name in mine:
            info = header[name]
            described[name] = {
                "dtype": info.dtype,
                "shape": info.shape,
                "data_offsets": [place, place + info.nbytes],
            }
            place += info.nbytes
            data.append(raw[begin + info.begin : begin + info.end])
            weight_map[name] = shard
        text = json.dumps(described).encode()
        (directory / shard).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert max(one.stat().st_size for one in directory.iterdir()) > 2 * CHUNK
    return directory


def parts(whole: Path, pp: int, **more) -> dict[str, NodePart]:
    return node_parts(
        inspect(LocalFiles(whole)),
        Layout(NODES[: pp * more.get("tp", 1)], more.pop("tp", 1), pp, **more),
        "hf:org/model@main",
    )


class Spread:
    """Relays that bring each node's part to its directory. hub: the first takes all from there, else it has
    all."""

    def __init__(self, directory: Path, whole: Path) -> None:
        self.directory, self.whole = directory, whole
        self.pyz = program(directory)
        self.sizes = {one.name: one.stat().st_size for one in whole.iterdir() if one.name[0] != "."}

    def run(self, wanted: dict[str, NodePart], hub=None) -> dict[str, dict]:
        nodes = list(wanted)
        places = None
        if hub is not None:
            url = f"{hub.url}/{REPOSITORY}/resolve/{COMMIT}/"
            places = {name: HubSource(url + name, None, f"blob of {name}") for name in self.sizes}
        pieces = chain_parts(
            Ways(tuple(nodes), dict(zip(nodes[1:], nodes, strict=False)), {}), self.sizes, wanted, hub=places
        )
        key, said = new_key(True), {}
        relays = {}
        for node in nodes:
            place = self.directory / node if hub or node != nodes[0] else self.whole
            listed = [json.loads(json.dumps(one.to_json())) for one in pieces[node]]
            for entry in listed:
                if hub and isinstance(entry["from"], dict) and "url" in entry["from"]:
                    entry["from"]["blob"] = None  # the small hub here knows no hashes
            relays[node] = Relay(self.pyz, place, {}, key, None, listed=listed)
        for one in relays.values():
            for node, other in relays.items():
                one.upstream(node, other.address)
        for node, one in relays.items():
            said[node] = one.until("done", "failed")
        for one in relays.values():
            one.tell({"stop": True})
            one.process.wait(20)
        return said

    def holds(self, node: str, part: NodePart) -> None:
        """A node has the tensors that it needs, with the right bytes, and nothing else."""
        place, original = self.directory / node, tensors(self.whole)
        mine = tensors(place)
        assert mine == {name: original[name] for name in json.loads(part.index)["weight_map"]}
        assert sum(one.stat().st_size for one in place.glob("*.safetensors")) == part.nbytes
        assert is_part((place / INDEX).read_bytes())
        assert (place / "config.json").exists()
        left = {one.name for one in place.iterdir() if one.name[0] == "."}
        assert left <= {".glmspark-lock", ".glmspark-weights.json"}


def test_each_node_needs_its_stage(whole):
    found = inspect(LocalFiles(whole))
    layout = Layout(NODES, 1, 3)
    needed = [needed_names(found, layout, rank) for rank in range(3)]
    trunk = {name for name in found.content.tensors if ".layers.4." not in name}
    assert set.union(*needed) == trunk  # no MTP: the recipe drafts with nothing
    assert not needed[0] & needed[1]
    with_mtp = needed_names(found, Layout(NODES, 1, 3, mtp=True), 2)
    assert with_mtp - needed[2] == {
        name for name in found.content.tensors if ".layers.4." in name or "embed_tokens" in name
    }
    for part in parts(whole, 3).values():
        assert part.nbytes <= 0.4 * part.whole


def test_thirty_gigabytes_in_three_stages(tmp_path):
    found = inspect(LocalFiles(write("glm-5.2-reap-7-layers", tmp_path / "m", shard_bytes=1_000_000_000)))
    assert found.problems == ()
    parts = node_parts(found, Layout(NODES, 1, 3), "path:/model").values()
    assert all(0.3 * part.whole < part.nbytes <= 0.4 * part.whole for part in parts)
    # What a plan says without looking at tensors: the same but for headers.
    recipe = load_recipe("glm-tiny")
    recipe = recipe.model_copy(update={"layout": recipe.layout.model_copy(update={"tp": 1, "pp": 3})})
    outline = outline_of(inspect_checkpoint(found.where))
    for part, place in zip(parts, places(7, 1, 3), strict=True):
        assert stored_bytes(recipe, outline, place) == pytest.approx(part.nbytes, rel=0.001)
    assert sum(len(part.shards) for part in parts) <= len(found.content.shards) + 2
    assert sum(kept is not None for part in parts for kept in part.shards.values()) <= 4


def test_experts_lie_whole_on_their_ranks(whole):
    found = inspect(LocalFiles(whole))
    layout = Layout(("n1", "n2"), 2, 1, ep=True, mtp=True)
    one, two = (needed_names(found, layout, rank) for rank in range(2))
    assert one | two == set(found.content.tensors)
    assert all(".mlp.experts." in name for name in one ^ two)
    assert {int(name.split(".experts.")[1].split(".")[0]) for name in one - two} == {0, 1, 2, 3}


@pytest.mark.parametrize("from_hub", [False, True])
def test_nodes_store_what_they_need_and_fetch_the_difference(whole, tmp_path, from_hub):
    spread = Spread(tmp_path, whole)
    with serving(whole) as server:
        hub = server if from_hub else None
        nodes = list(NODES) if from_hub else list(NODES[1:])
        three = parts(whole, 3)
        said = spread.run(three, hub)
        assert {one["t"] for one in said.values()} == {"done"}, said
        for node in nodes:
            spread.holds(node, three[node])
        again = spread.run(three, hub)
        assert [again[node]["received"] for node in nodes] == [0] * len(nodes)
        if from_hub:
            # The first node keeps its part as it is, and passes on again what another lost of the same shard.
            mine = {name for name, part in three[nodes[0]].shards.items() if part is not None}
            node, shard = next(
                (node, name) for node in nodes[1:] for name in three[node].shards if name in mine
            )
            flip_on_disk(tmp_path / node / shard, (tmp_path / node / shard).stat().st_size - 1)
            assert spread.run(three, hub)[node]["received"] > 0
            for node in nodes:
                spread.holds(node, three[node])
            two = parts(whole, 2)
            said = spread.run(two, hub)
            for node in two:
                spread.holds(node, two[node])


def test_what_is_there_of_a_part_is_taken_in_whole_chunks(tmp_path):
    size = 9 * CHUNK + 5
    sizes = {"a.safetensors": size}
    source, other = model(tmp_path / "source", sizes), model(tmp_path / "other", sizes, seed=2)
    pyz, key = program(tmp_path), new_key(True)
    target = tmp_path / "target" / "a.safetensors"

    def take(place: Path, header: str, *spans: tuple[int, int]) -> int:
        """Have a part of a model's file, or without spans all of it; the bytes that came."""
        entry = {"name": "a.safetensors", "size": size, "from": "giver"}
        if spans:
            entry["part"] = {"header": header, "spans": spans}
        giver = Relay(pyz, place, sizes, key, None)
        taker = Relay(pyz, target.parent, {}, key, None, listed=[entry])
        taker.upstream("giver", giver.address)
        said = taker.until("done", "failed")
        for one in (taker, giver):
            one.end()
        assert said["t"] == "done", said
        data = (place / "a.safetensors").read_bytes()
        kept = len(header).to_bytes(8, "little") + header.encode() if spans else data
        assert target.read_bytes() == kept + b"".join(data[begin:end] for begin, end in spans)
        return int(said["received"])

    def take_both_in_spite_of_a_kill() -> None:
        """Killed when the first of two parts has come: that one does not come again."""
        names = ("a.safetensors", "b.safetensors")
        giver = Relay(pyz, twice, dict.fromkeys(names, size), key, None, rate=50_000_000)
        listed = [
            {"name": name, "size": size, "from": "giver", "part": {"header": "{}", "spans": [[0, 4 * CHUNK]]}}
            for name in names
        ]
        taker = Relay(pyz, tmp_path / "killed", {}, key, None, listed=listed)
        taker.upstream("giver", giver.address)
        taker.until("have")
        taker.kill()
        taker.start()
        taker.upstream("giver", giver.address)
        said = taker.until("done", "failed")
        for one in (taker, giver):
            one.end()
        assert said["received"] <= 4 * CHUNK
        assert said["received"] + said["reused"] == 8 * CHUNK

    twice = model(tmp_path / "twice", {"a.safetensors": size, "b.safetensors": size})
    take_both_in_spite_of_a_kill()
    second = ((2 * CHUNK, 7 * CHUNK), (8 * CHUNK, size))
    assert take(source, "{}", (CHUNK // 2, 5 * CHUNK), (6 * CHUNK - 1, 7 * CHUNK)) == 7 * CHUNK
    # Chunks 1 to 4 and 6 lie in it whole, 5 does not; 8 and the end are new.
    assert take(source, "{ }", *second) == 2 * CHUNK + 5
    flip_on_disk(target, CHUNK + 100)
    assert take(source, "{ }", *second) == 2 * CHUNK  # both that share a damaged one
    assert take(other, "{ }", *second) == 6 * CHUNK + 5  # of another revision nothing is used
    assert take(other, "") == 3 * CHUNK + 0  # all of it: chunks 0, 1 and 7
