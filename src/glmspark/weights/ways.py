"""Which node takes from which, and at which address: one chain on a switch, both directions of a ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glmspark.config.cluster import Cluster, Node
from glmspark.errors import GlmsparkError

__all__ = ["Ways", "ways"]


@dataclass(frozen=True)
class Ways:
    """order: nodes, each after the one it takes from. before: that one, by node; the first has none.
    addresses: by giver and taker, the giver's address that the taker reaches."""

    order: tuple[str, ...]
    before: Mapping[str, str]
    addresses: Mapping[str, Mapping[str, str]]

    def above(self, node: str) -> list[str]:
        """The nodes on the way from the first to this one, the nearest first."""
        found = []
        while node in self.before:
            node = self.before[node]
            found.append(node)
        return found


def ways(cluster: Cluster, order: Sequence[str]) -> Ways:
    """How weights go from order[0] to all others.

    Where all are in one network (a switch), each takes from the one before it, so that no link carries the
    model twice. Where they are not (a ring), each takes from the neighbour that is fewer cables away from the
    first: down both directions at once. Raises GlmsparkError for a node without an address on the fabric.
    """
    nodes = {node.name: node for node in cluster.nodes if node.name in order}
    for node in nodes.values():
        if len(nodes) > 1 and not node.fabric:
            raise GlmsparkError(
                f"{node.name} has no fabric address",
                step="read cluster.yaml",
                next="`glmspark init` finds the fabric; or write nodes.fabric by hand",
            )
    mine = [nodes[name] for name in order]
    addresses = {
        one.name: {other.name: _address(one, other, mine) for other in mine if other is not one}
        for one in mine
    }
    if _common(mine) is not None or len(mine) < 3:
        return Ways(tuple(order), dict(zip(order[1:], order, strict=False)), addresses)
    before: dict[str, str] = {}
    reached = [mine[0]]
    for one in reached:
        for other in mine:
            if other not in reached and _networks(one) & _networks(other):
                before[other.name] = one.name
                reached.append(other)
    for one in mine:  # whoever no cable leads to takes over whatever route there is
        if one not in reached:
            before[one.name] = reached[-1].name
            reached.append(one)
    return Ways(tuple(one.name for one in reached), before, addresses)


def _networks(node: Node) -> set[object]:
    return {link.address.network for link in node.fabric}


def _common(nodes: Sequence[Node]) -> object | None:
    """The first network that all nodes are in."""
    for link in nodes[0].fabric:
        if all(link.address.network in _networks(node) for node in nodes):
            return link.address.network
    return None


def _address(giver: Node, taker: Node, nodes: Sequence[Node]) -> str:
    """The giver's in the network of all, else in one of both, else its first."""
    if not giver.fabric:
        return "127.0.0.1"
    common = _common(nodes)
    theirs = {common} if common is not None else _networks(taker)
    shared = (link for link in giver.fabric if link.address.network in theirs)
    return str(next(shared, giver.fabric[0]).address.ip)
