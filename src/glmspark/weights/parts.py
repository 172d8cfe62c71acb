"""What of a checkpoint each node has to store for a layout: whole shards, parts of shards, and an index that
says so."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmspark.config.recipe import Recipe
from glmspark.models.inspection import Inspection
from glmspark.models.inspection.content import INDEX, MARK, Shard
from glmspark.plan.checks import drafts_with_mtp
from glmspark.plan.split import check_layout, layer_ranges
from glmspark.plan.stored import owns_experts
from glmspark.weights.holdings import expert_places, needed_tensors, tensor_name
from glmspark.weights.spread import HubSource, Part, Piece
from glmspark.weights.ways import Ways

__all__ = ["Layout", "NodePart", "chain_parts", "is_part", "layout_of", "needed_names", "node_parts"]

_LAYER = re.compile(r"\blayers\.(\d{1,6})\.", re.ASCII)


@dataclass(frozen=True)
class Layout:
    """nodes: by rank, TP the inner dimension. ep: routed experts lie whole on the ranks of a TP group. mtp:
    whether the MTP layers are loaded."""

    nodes: tuple[str, ...]
    tp: int
    pp: int
    ep: bool = False
    mtp: bool = False

    def to_json(self) -> dict[str, Any]:
        """As the index has it."""
        return {"tp": self.tp, "pp": self.pp, "ep": self.ep, "mtp": self.mtp}


@dataclass(frozen=True)
class NodePart:
    """What one node stores. shards: by name, None for all of it, else the part. index: the text of the one
    that says so. nbytes: of its shards. whole: of all shards."""

    node: str
    rank: int
    shards: Mapping[str, Part | None] = field(repr=False)
    index: str = field(repr=False)
    nbytes: int
    whole: int


def is_part(index: bytes) -> bool:
    """Whether an index says that its directory holds a part of a model."""
    try:
        return isinstance(json.loads(index)["metadata"][MARK]["of"], dict)
    except (ValueError, KeyError, TypeError):
        return False


def layout_of(recipe: Recipe, nodes: Sequence[str], tp: int, pp: int) -> Layout:
    """The layout in which a recipe is served on these nodes."""
    return Layout(tuple(nodes), tp, pp, ep=owns_experts(recipe, tp), mtp=drafts_with_mtp(recipe))


def needed_names(found: Inspection, layout: Layout, rank: int) -> set[str]:
    """The stored tensors that a rank reads any part of, and what the architecture does not know of.

    TP alone splits within tensors: then every rank of a stage reads all of the stage's. With EP a rank reads
    its own experts only, where they are numbered from 0.
    """
    stage, tp_rank = divmod(rank, layout.tp)
    wanted = needed_tensors(found, stage, layout.pp, mtp=layout.mtp)
    experts = found.architecture.experts
    if _own_experts(found, layout):
        wanted -= {
            tensor_name(matrix, part)
            for matrix in found.matrices.stored.values()
            if matrix.expert is not None and matrix.expert * layout.tp // experts != tp_rank
            for part in matrix.parts
        }
    known = {tensor_name(matrix, part) for matrix in found.matrices.stored.values() for part in matrix.parts}
    trunk = len(found.architecture.layers)
    begin, end = layer_ranges(trunk, layout.pp)[stage]
    for name in found.content.tensors.keys() - known:
        match = _LAYER.search(name)
        layer = int(match[1]) if match else None
        if (
            layer is None
            or begin <= layer < end
            or (layer >= trunk and layout.mtp and stage == layout.pp - 1)
        ):
            wanted.add(name)
    return wanted


def _own_experts(found: Inspection, layout: Layout) -> bool:
    """Whether a rank can tell its experts by their numbers, and holds no others."""
    experts = found.architecture.experts
    if not layout.ep or not experts or experts % layout.tp:
        return False
    places = expert_places(found)
    return all(
        matrix.expert is None or places.get(matrix.module) == matrix.expert
        for matrix in found.matrices.stored.values()
    )


def node_parts(found: Inspection, layout: Layout, source: str) -> dict[str, NodePart]:
    """What each node of a layout stores of a checkpoint. source: what it is, for the index.

    Raises PlanError where the model cannot be split so.
    """
    check_layout(found.architecture, layout.tp, layout.pp)
    shards = found.content.shards
    whole = sum(shard.size for shard in shards.values())
    of = {name: [shard.size, shard.header] for name, shard in sorted(shards.items())}
    experts = _own_experts(found, layout)
    result: dict[str, NodePart] = {}
    for rank, node in enumerate(layout.nodes):
        wanted = needed_names(found, layout, rank)
        kept: dict[str, Part | None] = {}
        places: dict[str, str] = {}
        nbytes = 0
        for name, shard in shards.items():
            own = {one for one in shard.tensors if found.content.tensors.get(one, ("",))[0] == name}
            mine = own & wanted
            if not mine:
                continue
            places |= dict.fromkeys(mine, name)
            kept[name] = None if mine == shard.tensors.keys() else _part(shard, mine)
            part = kept[name]
            nbytes += shard.size if part is None else part.size
        mark = {
            "version": 1,
            "source": source,
            **layout.to_json(),
            "rank": rank,
            "experts": experts,
            "of": of,
        }
        index = {
            "metadata": {"total_size": nbytes, MARK: mark},
            "weight_map": {name: places[name] for name in sorted(places)},
        }
        result[node] = NodePart(node, rank, kept, json.dumps(index, indent=1) + "\n", nbytes, whole)
    return result


def _part(shard: Shard, names: set[str]) -> Part:
    """Some tensors of a shard as a file of their own, in their old order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    spans: list[list[int]] = []
    place = 0
    for name, info in sorted(shard.tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if name not in names:
            continue
        end = place + info.nbytes
        header[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [place, end]}
        place = end
        first, last = shard.data + info.begin, shard.data + info.end
        if spans and spans[-1][1] == first:
            spans[-1][1] = last
        else:
            spans.append([first, last])
    text = json.dumps(header, separators=(",", ":"))
    # The format's own writer aligns the data to 8 bytes by spaces after the header.
    text += " " * (-len(text.encode()) % 8)
    return Part(text, tuple((begin, end) for begin, end in spans))


def chain_parts(
    way: Ways,
    files: Mapping[str, int],
    parts: Mapping[str, NodePart],
    hub: Mapping[str, HubSource] | None = None,
) -> dict[str, list[Piece]]:
    """Where each node takes what it stores from: the nearest on the way from the first that stores all of the
    file, else the first, which has everything or passes on what it does not store itself.

    The index is each node's own, and config.json comes last.
    """
    first, nodes = way.order[0], way.order
    others = sorted(name for name in files if not name.endswith(".safetensors") and name != INDEX)
    others.sort(key=lambda name: name == "config.json")
    shards = sorted(name for name in files if name.endswith(".safetensors"))
    shards = [name for name in shards if any(name in part.shards for part in parts.values())]
    passed = {name for node in nodes[1:] for name in parts[node].shards}
    ids = {name: one.sha256 or one.blob for name, one in hub.items()} if hub else {}
    result: dict[str, list[Piece]] = {}
    holds: dict[str, set[str]] = {first: {*others, *shards}}

    def nearest(node: str, name: str) -> str:
        return next(one for one in way.above(node) if name in holds[one])

    for node in nodes:
        mine = parts[node]
        pieces: list[Piece] = []
        for name in shards:
            kept = name in mine.shards
            part = mine.shards.get(name, Part("", ()))
            if node != first and kept:
                pieces.append(Piece(name, files[name], nearest(node, name), part, identity=ids.get(name)))
            elif node == first and hub is None:
                pieces.append(Piece(name, files[name], None))
            elif node == first and (kept or name in passed):
                through = part is not None
                pieces.append(Piece(name, files[name], hub[name], part, through, ids.get(name)))  # type: ignore[index]
        if node == first and hub is None:
            pieces += [Piece(name, files[name], None) for name in others]
        else:
            pieces.append(Piece(INDEX, len(mine.index.encode()), mine.index.encode()))
            for name in others:
                source = hub[name] if hub and node == first else nearest(node, name)
                pieces.append(Piece(name, files[name], source))
        if node != first:
            holds[node] = {*others, *(name for name, part in mine.shards.items() if part is None)}
        result[node] = pieces
    return result
