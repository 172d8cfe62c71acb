"""The headers of a model that lies on a node, laid out here as files whose data is a hole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from glmspark.nodes.facts.checkpoint import Listing, heads
from glmspark.nodes.listings import SECONDS
from glmspark.nodes.node import Node
from glmspark.nodes.survey import survey
from glmspark.nodes.transport import NodeError

__all__ = ["Heads", "laid_out", "read_heads"]

Heads = Mapping[str, tuple[int, bytes]]
"""Size and first bytes of files: shards with their headers, JSON whole."""


async def read_heads(node: Node, place: str, found: Listing) -> Heads:
    """How the files of the model at `place` begin. found: what it holds. Raises NodeError."""
    names = tuple(one.name for one in found.files if one.name.endswith((".safetensors", ".json")))
    fact = heads(place, names)
    facts = await survey(node, [fact], each=int(SECONDS), timeout=SECONDS + 10)
    begun = facts.get(fact)
    if begun is None:
        raise NodeError(f"cannot read {place}: {facts.problem(fact)}", host=node.host, step="read the model")
    return begun


@contextmanager
def laid_out(begun: Heads) -> Iterator[Path]:
    """A directory with these files at their full size, until the block is left."""
    with tempfile.TemporaryDirectory(prefix="glmspark-model-") as directory:
        for name, (size, data) in begun.items():
            with (Path(directory) / name).open("wb") as file:
                file.write(data)
                file.truncate(size)
        yield Path(directory)
