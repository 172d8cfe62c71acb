"""A model of which nodes store parts (`fetch --only-needed`): joined, and each compared with its rank's."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glmspark.config.recipe import ModelSource
from glmspark.errors import GlmsparkError
from glmspark.models import Checkpoint, inspect_checkpoint
from glmspark.models.checkpoint import check_tokenizer
from glmspark.models.errors import CheckpointError
from glmspark.models.files import LocalFiles
from glmspark.models.inspection import inspect
from glmspark.models.inspection.content import INDEX, MARK
from glmspark.models.safetensors import TensorInfo, check_layout, header_length, parse_header
from glmspark.nodes.facts.checkpoint import Listing
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.heads import Heads, read_heads
from glmspark.weights.parts import Layout, is_part, needed_names

__all__ = ["join_parts", "look_at_parts"]

_FETCH = "`glmspark fetch RECIPE --cluster FILE --only-needed` brings what this layout needs there"


async def look_at_parts(
    fleet: Fleet, source: ModelSource, place: str, found: Mapping[str, Listing], layout: Layout
) -> Checkpoint | None:
    """The checkpoint whose parts lie on the nodes; None where no node says that it has but a part.

    found: what lies at `place` on each. Raises NodeError; GlmsparkError naming the node that has another
    revision, or not what its rank needs.
    """
    results = await asyncio.gather(*(read_heads(fleet.nodes[name], place, found[name]) for name in found))
    heads = dict(zip(found, results, strict=True))
    if not any(is_part(one[INDEX][1]) for one in heads.values() if INDEX in one):
        return None
    # Thousands of headers: not on the loop that keeps the connections.
    checkpoint = await asyncio.to_thread(join_parts, heads, found, str(source), place, layout)
    return replace(checkpoint, directory=Path(place))


def join_parts(
    heads: Mapping[str, Heads], found: Mapping[str, Listing], source: str, place: str, layout: Layout
) -> Checkpoint:
    """One checkpoint of the headers of all nodes, after all that can be wrong with them was looked for."""
    _check_beside(found, place)
    _check_revision(heads, found, place)
    with tempfile.TemporaryDirectory(prefix="glmspark-model-") as folder:
        directory = Path(folder)
        held = _lay_out(directory, heads, place)
        try:
            checkpoint = inspect_checkpoint(directory)
            check_tokenizer(directory)
        except CheckpointError as error:
            raise CheckpointError(
                f"the parts of {source} on {', '.join(heads)} are not all of it: "
                + error.message.replace(folder, place),
                step="join the parts of the model",
                seen=(error.seen or "").replace(folder, place) or None,
                next=_FETCH,
            ) from None
        whole = inspect(LocalFiles(directory))
    for rank, node in enumerate(layout.nodes):
        lacking = needed_names(whole, layout, rank) - held[node]
        if lacking:
            first, last = _layers(checkpoint, layout, rank)
            raise GlmsparkError(
                f"rank {rank} needs layers {first}-{last} of {source}, of which {len(lacking)} tensors are "
                f"not at {place}",
                host=node,
                step="find the model",
                seen=", ".join(sorted(lacking)[:3]),
                next=_FETCH,
            )
    return checkpoint


def _layers(checkpoint: Checkpoint, layout: Layout, rank: int) -> tuple[int, int]:
    from glmspark.plan.split import layer_ranges

    begin, end = layer_ranges(len(checkpoint.architecture.layers), layout.pp)[rank // layout.tp]
    return begin, end - 1


def _check_beside(found: Mapping[str, Listing], place: str) -> None:
    """Config, tokenizer and the like are the same everywhere."""
    first, *others = found
    mine = _beside(found[first])
    for node in others:
        theirs = _beside(found[node])
        if differing := sorted(
            name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)
        ):
            raise GlmsparkError(
                f"{place} is not the same on {first} and {node}: {', '.join(differing[:5])}",
                host=node,
                step="compare the models",
                next=_FETCH,
            )


def _beside(found: Listing) -> dict[str, tuple[int, str]]:
    return {
        one.name: (one.size, one.digest)
        for one in found.files
        if not one.name.endswith(".safetensors") and one.name != INDEX
    }


def _check_revision(heads: Mapping[str, Heads], found: Mapping[str, Listing], place: str) -> None:
    """Parts are of the same shards, and whole shards are those: by their sizes and headers."""
    of: dict[str, Any] | None = None
    said_by = ""
    for node, one in heads.items():
        if INDEX in one and is_part(one[INDEX][1]):
            mine = json.loads(one[INDEX][1])["metadata"][MARK]["of"]
            if of is None:
                of, said_by = mine, node
            elif mine != of:
                raise _other_revision(said_by, node, place)
    for node, one in heads.items():
        if of is None or (INDEX in one and is_part(one[INDEX][1])):
            continue
        shards = {name.name: [name.size, name.digest] for name in found[node].files if name.name in of}
        if shards != of:
            raise _other_revision(said_by, node, place)


def _other_revision(one: str, other: str, place: str) -> GlmsparkError:
    return GlmsparkError(
        f"{place} is of another revision on {other} than on {one}",
        host=other,
        step="compare the models",
        next=_FETCH,
    )


def _tensors(node: str, path: Path, size: int, data: bytes) -> dict[str, TensorInfo]:
    """What a node's shard holds. Each is looked at by itself: of what lies on two nodes, one copy stands in
    the joined checkpoint, and the other may be cut short."""
    try:
        length = header_length(data[:8], size, path)
        tensors = parse_header(data[8 : 8 + length], path)
        check_layout(tensors, size - 8 - length, path)
    except CheckpointError as error:
        error.host, error.next = node, _FETCH
        raise
    return tensors


def _lay_out(directory: Path, heads: Mapping[str, Heads], place: str) -> dict[str, set[str]]:
    """All nodes' shards in one directory, with an index over them; the tensors that each node has."""
    weight_map: dict[str, str] = {}
    held: dict[str, set[str]] = {}
    for number, (node, files) in enumerate(heads.items()):
        index = json.loads(files[INDEX][1])["weight_map"] if INDEX in files else None
        held[node] = set()
        for name, (size, data) in files.items():
            if name == INDEX or (number and not name.endswith(".safetensors")):
                continue
            own = name
            if name.endswith(".safetensors"):
                own = f"node-{number}-{name}"
                tensors = _tensors(node, Path(place) / name, size, data)
                mine = {one for one in tensors if index is None or index.get(one) == name}
                held[node] |= mine
                weight_map |= {one: own for one in mine if one not in weight_map}
            with (directory / own).open("wb") as file:
                file.write(data)
                file.truncate(size)
        if index is not None and (lost := index.keys() - held[node]):
            raise GlmsparkError(
                f"{place}/{INDEX} names {len(lost)} tensors that are not there",
                host=node,
                step="find the model",
                seen=", ".join(sorted(lost)[:3]),
                next=_FETCH,
            )
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return held
