"""What a model directory holds on each of several nodes."""

from __future__ import annotations

from glmspark.nodes.facts.checkpoint import Listing, listing
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import Node
from glmspark.nodes.survey import survey
from glmspark.nodes.transport import NodeError

__all__ = ["SECONDS", "listings"]

SECONDS = 300.0
"""How long one node's look may take: a checkpoint has hundreds of files, on a disk that may be slow."""


async def listings(fleet: Fleet, place: str, *, whole: bool = False) -> dict[str, Listing]:
    """The directory `place` on every node. whole: shards by all of their data, else by their headers.

    Raises NodeError for the first node that cannot be asked or cannot look.
    """
    fact = listing(place, whole=whole)

    async def ask(node: Node) -> Listing:
        facts = await survey(node, [fact], each=int(SECONDS), timeout=SECONDS + 10)
        value = facts.get(fact)
        if value is None:
            raise NodeError(
                f"cannot look into {place}: {facts.problem(fact)}", host=node.host, step="find the model"
            )
        return value

    found = await fleet.each(ask)
    for one in found.values():
        if isinstance(one, NodeError):
            raise one
    return {name: one for name, one in found.items() if isinstance(one, Listing)}
