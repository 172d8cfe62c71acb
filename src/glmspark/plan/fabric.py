"""Which of a node's addresses the other ranks use, and which interfaces carry their traffic."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glmspark.config.cluster import Link, Node
from glmspark.nodes.facts.network import Route
from glmspark.plan.errors import PlanError
from glmspark.plan.facts import NodeFacts

__all__ = ["Place", "all_adjacent", "fabric_places", "free_port"]


@dataclass(frozen=True)
class Place:
    """A node in the fabric.

    address, interface: where the others reach it. interfaces, hcas: all that NCCL may use, in the file's
    order. gid_index: of the address in the RDMA device's table.
    """

    address: str
    interface: str
    interfaces: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    gid_index: int | None = None


def fabric_places(nodes: Sequence[Node], facts: Mapping[str, NodeFacts]) -> dict[str, Place]:
    """Where each node's rank is reached by all others, by node.

    A network that all nodes are in comes first (a switch). Where there is none (a ring), a node takes the
    first of its addresses to which every other has a route over its own fabric: the default route, which on a
    Spark is often Wi-Fi, never counts. Raises PlanError naming the pair that has no way.
    """
    if len(nodes) == 1:
        return {nodes[0].name: Place("127.0.0.1", "lo")}
    links = _in_common(nodes) or {node.name: _reached(node, nodes, facts) for node in nodes}
    return {node.name: _place(node, links[node.name], facts[node.name]) for node in nodes}


def all_adjacent(nodes: Sequence[Node]) -> bool:
    """Whether every two nodes are in one network: a ring of four or more cables has nodes that are not."""
    networks = [{link.address.network for link in node.fabric} for node in nodes]
    return all(one & other for i, one in enumerate(networks) for other in networks[:i])


def _in_common(nodes: Sequence[Node]) -> dict[str, Link] | None:
    for first in nodes[0].fabric:
        found = {
            node.name: link
            for node in nodes
            for link in reversed(node.fabric)
            if link.address.network == first.address.network
        }
        if len(found) == len(nodes):
            return found
    return None


def _reached(node: Node, nodes: Sequence[Node], facts: Mapping[str, NodeFacts]) -> Link:
    away = ""
    for link in node.fabric:
        without = [
            other.name
            for other in nodes
            if other is not node and not _leads(facts[other.name].routes, other, str(link.address.ip))
        ]
        if not without:
            return link
        away = away or without[0]
    raise PlanError(
        f"{away or 'another node'} has no way to {node.name} over the fabric",
        host=node.name,
        step="plan the fabric",
        seen=f"{node.name} is at {', '.join(str(link.address.ip) for link in node.fabric) or 'no address'}; "
        "the default route does not count",
        next="in a ring each node needs a route to the far ports of the others (docs/cluster.md); "
        "`glmspark doctor --cluster` shows every path",
    )


def _leads(routes: Sequence[Route], node: Node, address: str) -> bool:
    """Whether a node sends packets to an address over its fabric."""
    target = ipaddress.ip_address(address)
    fabric = {link.interface for link in node.fabric}
    if any(target in link.address.network for link in node.fabric):
        return True
    ways = [route for route in routes if not route.default and target in route.target]
    best = max(ways, key=lambda route: route.target.prefixlen, default=None)
    return best is not None and best.interface in fabric


def _place(node: Node, link: Link, facts: NodeFacts) -> Place:
    rdma = tuple(dict.fromkeys(one.hca for one in node.fabric if one.hca))
    index = link.gid_index
    if link.hca and index is None:
        found = [port.gid_of(str(link.address.ip)) for port in facts.rdma if port.device == link.hca]
        index = next((one for one in found if one is not None), None)
        if index is None:
            raise PlanError(
                f"{link.hca} has no RoCE v2 GID of {link.address.ip}",
                host=node.name,
                step="plan the fabric",
                next=f"`glmspark doctor --cluster` says why; without `hca: {link.hca}` in cluster.yaml NCCL "
                "uses sockets",
            )
    return Place(
        address=str(link.address.ip),
        interface=link.interface,
        interfaces=tuple(one.interface for one in node.fabric),
        hcas=rdma,
        gid_index=index,
    )


def free_port(first: int, address: str, facts: NodeFacts, *, count: int = 100) -> int:
    """The first TCP port from `first` on that nobody on a node listens on. PlanError where there is none."""
    for port in range(first, first + count):
        if not any(one.port == port and one.covers(address) for one in facts.listeners):
            return port
    raise PlanError(
        f"no port from {first} to {first + count - 1} is free",
        host=facts.machine.hostname,
        step="plan the ports",
        next="see by what they are taken: sudo ss -tlnp",
    )
