"""Other deployments with rank 0 on the same node: their ports are taken, also before anything listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmspark.errors import UsageError
from glmspark.launch.agents import Agents
from glmspark.nodes.facts.ports import Listener
from glmspark.nodes.transport import NodeError

__all__ = ["Neighbour", "look_at_neighbours", "neighbours_of", "refuse_taken", "taken_ports"]


@dataclass(frozen=True)
class Neighbour:
    """A deployment that runs or starts. host, port: where its API listens. ports: its others."""

    name: str
    host: str
    port: int
    ports: tuple[int, ...]


def neighbours_of(states: Sequence[Mapping[str, Any]], name: str) -> tuple[Neighbour, ...]:
    """The neighbours among a node's states with their records. name: of the deployment that is not one."""
    found = []
    for state in states:
        record = state.get("record")
        if not state.get("alive") or state.get("rank") != 0 or not isinstance(record, dict):
            continue
        endpoint, ports = record.get("endpoint") or {}, (record.get("plan") or {}).get("ports") or {}
        if record.get("name") != name and isinstance(endpoint.get("port"), int):
            others = tuple(port for port in ports.values() if isinstance(port, int) and port)
            found.append(Neighbour(str(record["name"]), str(endpoint.get("host")), endpoint["port"], others))
    return tuple(found)


async def look_at_neighbours(agents: Agents, head: str, name: str) -> tuple[Neighbour, ...]:
    """The neighbours on a node. Raises NodeError."""
    found = (await Agents(agents.fleet).all_states(record=True))[head]
    if isinstance(found, NodeError):
        raise found
    return neighbours_of(found, name)


def taken_ports(neighbours: Sequence[Neighbour]) -> tuple[Listener, ...]:
    """Their ports as if something listened there."""
    return tuple(Listener("0.0.0.0", port, 0, 0) for one in neighbours for port in one.ports)  # noqa: S104


def refuse_taken(neighbours: Sequence[Neighbour], host: str, port: int, *, node: str) -> None:
    """Raises UsageError where a neighbour's API listens at an address and port, or will."""
    for one in neighbours:
        if one.port == port and _overlap(one.host, host):
            raise UsageError(
                f"port {port} is taken by the deployment {one.name}",
                host=node,
                step="check the port",
                next=f"`glmspark down {one.name}`, or choose another --port",
            )


def _overlap(one: str, other: str) -> bool:
    first, second = ("127.0.0.1" if host == "localhost" else host for host in (one, other))
    try:
        return Listener(first, 1, 0, 0).covers(second)
    except ValueError:  # a host name: the same one at least
        return first == second
