"""Look at nodes and judge what is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glmspark.config.cluster import Cluster
from glmspark.config.recipe import Recipe
from glmspark.nodes.checks import Expected, Look
from glmspark.nodes.checks.fabric import pair_facts
from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.disks import stored
from glmspark.nodes.facts.everything import EVERYTHING
from glmspark.nodes.facts.gpu_load import gpu_load
from glmspark.nodes.facts.inside import inside
from glmspark.nodes.facts.login import VERBS
from glmspark.nodes.facts.nccl import nccl
from glmspark.nodes.facts.nvidia import GPUS
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import Node
from glmspark.nodes.ssh import Address
from glmspark.nodes.survey import Facts, Reading, skew, survey
from glmspark.nodes.transport import NodeError


def addresses(cluster: Cluster) -> dict[str, Address | None]:
    """How to reach the nodes of a cluster file, by name."""
    found: dict[str, Address | None] = {}
    for node in cluster.nodes:
        reach = cluster.reach(node)
        found[node.name] = Address(
            host=node.address,
            port=reach.port,
            user=reach.user,
            name=node.name,
            known_hosts=None if reach.known_hosts is None else Path(reach.known_hosts).expanduser(),
            keys=() if reach.identity_file is None else (Path(reach.identity_file).expanduser(),),
        )
    return found


def expected_of(cluster: Cluster, *, ports: Sequence[int] | None = None) -> Expected:
    """What a cluster file alone tells of what is to run."""
    expected = Expected(
        image=cluster.runtime.image,
        venv=cluster.runtime.venv,
        python=cluster.runtime.python,
        mounts=cluster.runtime.mounts,
        models=cluster.paths.models,
        runtime=cluster.runtime.kind,
        rdma=any(link.hca for node in cluster.nodes for link in node.fabric),
    )
    return expected if ports is None else replace(expected, ports=tuple(ports))


def expected_by(recipe: Recipe, expected: Expected) -> Expected:
    """The same with what a recipe needs."""
    needs, source = recipe.needs, recipe.model.source
    directory = None
    if source.kind == "path":
        directory = source.name
    elif source.kind == "hf":
        directory = f"{expected.models}/{source.directory}"
    return replace(
        expected,
        recipe=recipe.name,
        nodes=needs.nodes,
        platform=needs.platform,
        memory=needs.memory_per_rank,
        weights=needs.disk,
        model=directory,
        backend=recipe.layout.backend,
        link=needs.link,
        link_gbit=needs.link_gbit,
        rdma=expected.rdma or needs.link == "rdma",
    )


async def look(
    where: Mapping[str, Address | None],
    *,
    cluster: Cluster | None = None,
    expected: Expected | None = None,
    load: float | None = None,
    said: Callable[[str], None] = lambda _: None,
) -> Look:
    """Gather all facts of all nodes at once.

    load: also run the probes that start something where ranks run (what they find there, NCCL's build, the
    GPU under so many seconds of load), for which that must be on the nodes. said: told each step, for people
    who wait.
    """
    expected = expected or (expected_of(cluster) if cluster else Expected())
    async with Fleet(where) as fleet:
        return await look_at(fleet, cluster=cluster, expected=expected, load=load, said=said)


async def look_at(
    fleet: Fleet,
    *,
    cluster: Cluster | None,
    expected: Expected,
    load: float | None = None,
    said: Callable[[str], None] = lambda _: None,
) -> Look:
    """The same for nodes that are connected already; see look."""
    facts: dict[str, Facts] = {}
    lost: dict[str, NodeError] = dict(fleet.lost)
    for step, ask in (
        ("gathering facts", _ask_everything(expected)),
        ("trying paths between nodes", _ask_paths(cluster, facts)),
        (f"looking from inside, {load or 0:g} s of load", _ask_probes(expected, facts, load)),
    ):
        if ask is None:
            continue
        said(step)
        results = await fleet.each(ask, names=[name for name in fleet.nodes if name not in lost])
        for name, result in results.items():
            if isinstance(result, NodeError):
                lost[name] = result
                facts.pop(name, None)
            else:
                facts[name] = result
    return Look({name: facts[name] for name in fleet.nodes if name in facts}, lost, cluster, expected)


def _ask_everything(expected: Expected) -> Callable[[Node], Any]:
    asked = [*EVERYTHING, stored(expected.model)] if expected.model is not None else EVERYTHING

    async def ask(node: Node) -> Facts:
        found = await survey(node, asked)
        return Facts(found.node, found.readings(), skew=await skew(node), seconds=found.seconds)

    return ask


def _ask_paths(cluster: Cluster | None, facts: Mapping[str, Facts]) -> Callable[[Node], Any] | None:
    if cluster is None or len(cluster.nodes) < 2:
        return None

    async def ask(node: Node) -> Facts:
        known = facts[node.host]
        return known.with_((await survey(node, pair_facts(cluster, known), timeout=120)).readings())

    return ask


def _ask_probes(
    expected: Expected, facts: Mapping[str, Facts], load: float | None
) -> Callable[[Node], Any] | None:
    place = expected.place
    if load is None or not place.known:
        return None

    async def ask(node: Node) -> Facts:
        known = facts[node.host]
        gpus, devices = known.get(GPUS), known.get(VERBS)
        gpu, verbs = bool(gpus), expected.rdma and bool(devices)
        probes: list[Fact[Any]] = [inside(place, gpu=gpu, verbs=verbs)]
        if gpu:
            probes += [nccl(place), gpu_load(place, load)]
        # One after the other, each with a limit of its own: in containers each starts one.
        readings: dict[str, Reading[Any]] = {}
        for probe in probes:
            limit = 120 + round(load)
            found = await survey(node, [probe], each=limit, timeout=limit + 30)
            readings.update(found.readings())
        return facts[node.host].with_(readings)

    return ask
