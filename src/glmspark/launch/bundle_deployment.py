"""Gathering a bundle: this machine's part, and that of the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from glmspark.config.cluster import Cluster
from glmspark.launch.bundle import Bundle, collect_home, collect_machine, collect_node
from glmspark.launch.cluster_ops import Place, place_of
from glmspark.launch.record import Home
from glmspark.nodes.checks import Expected
from glmspark.nodes.checks.everything import judge
from glmspark.nodes.doctor import addresses, expected_of, look_at
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import Node
from glmspark.nodes.ssh import Address
from glmspark.nodes.transport import NodeError

__all__ = ["gather"]


def gather(
    name: str,
    home: Home | None,
    place: Place | None = None,
    *,
    doctor: bool = True,
    said: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Everything of a deployment. home: this machine's record of it, if any. place: its nodes, where they are
    known otherwise. doctor: also look at the nodes. said: told each step."""
    bundle = Bundle(name)
    deployment = None if home is None else home.read()
    collect_machine(bundle)
    if home is not None:
        collect_home(bundle, home, deployment)
        place = place or place_of(home, deployment)
    asyncio.run(_nodes(bundle, name, place, doctor=doctor, said=said))
    return bundle


async def _nodes(
    bundle: Bundle, name: str, place: Place | None, *, doctor: bool, said: Callable[[str], None]
) -> None:
    where: dict[str, Address | None] = {"this machine": None} if place is None else _where(place)
    cluster = None if place is None else place.cluster
    said(f"asking {', '.join(where)}")
    async with Fleet(where) as fleet:
        for node, error in fleet.lost.items():
            bundle.notes.append(f"{node}: {error.message}")
        if place is not None:
            await _files(bundle, name, fleet)
        if doctor and fleet.nodes:
            await _doctor(bundle, fleet, cluster, said)


def _where(place: Place) -> dict[str, Address | None]:
    known = addresses(place.cluster)
    return {node: known[node] for node in place.nodes}


async def _files(bundle: Bundle, name: str, fleet: Fleet) -> None:
    async def one(node: Node) -> tuple[dict[str, bytes], list[str]]:
        return await collect_node(node, name)

    for node, found in (await fleet.each(one)).items():
        if isinstance(found, NodeError):
            bundle.notes.append(f"{node}: {found.message}")
            continue
        files, notes = found
        for path, data in files.items():
            bundle.add(f"{node}/{path}", data)
        bundle.notes += [f"{node}/{note}" for note in notes]


async def _doctor(bundle: Bundle, fleet: Fleet, cluster: Cluster | None, said: Callable[[str], None]) -> None:
    expected = expected_of(cluster) if cluster is not None else Expected(runtime="venv", ports=())
    seen = await look_at(fleet, cluster=cluster, expected=expected, said=said)
    bundle.json("doctor.json", {"verdicts": [one.to_json() for one in judge(seen)]})
