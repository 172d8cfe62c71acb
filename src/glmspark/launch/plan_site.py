"""The nodes that a plan is for, looked at."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from glmspark.config.cluster import Cluster
from glmspark.config.recipe import Recipe
from glmspark.nodes.doctor import addresses
from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.account import BOARD
from glmspark.nodes.facts.memory_detail import MEMORY_DETAIL
from glmspark.nodes.facts.network import LINKS
from glmspark.nodes.facts.nvidia import GPUS
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.survey import Facts, survey
from glmspark.nodes.transport import NodeError
from glmspark.plan.errors import PlanError
from glmspark.plan.site import Seat, Site, recipe_link

__all__ = ["cluster_site"]


def cluster_site(cluster: Cluster, recipe: Recipe, count: int | None = None) -> Site:
    """A cluster's nodes as they are now. count: only so many, its first, which ranks go to; the others need
    not answer. Raises NodeError for one that cannot be reached or read."""
    if count is not None:
        cluster = cluster.model_copy(update={"nodes": cluster.nodes[:count]})
    return asyncio.run(_cluster_site(cluster, recipe))


async def _cluster_site(cluster: Cluster, recipe: Recipe) -> Site:
    asked: list[Fact[Any]] = [MEMORY_DETAIL, BOARD, GPUS, LINKS]
    async with Fleet(addresses(cluster)) as fleet:
        for lost in fleet.lost.values():
            raise lost
        found = await fleet.each(lambda node: survey(node, asked))
    seats, gpus, speeds = [], [], []
    for node in cluster.nodes:
        facts = found[node.name]
        if isinstance(facts, NodeError):
            raise facts
        memory = facts.get(MEMORY_DETAIL)
        if memory is None:
            raise NodeError(
                f"cannot read its memory: {facts.problem(MEMORY_DETAIL)}",
                host=node.name,
                step="look at the node",
            )
        board = facts.get(BOARD) or node.name
        seats.append(Seat(node.name, memory.total, memory.available, board))
        found_gpus: Any = facts.get(GPUS)
        gpus.append(bool(found_gpus))
        speeds.append(_speed(facts, [link.interface for link in node.fabric]))
    hcas = [any(link.hca for link in node.fabric) for node in cluster.nodes]
    known = [speed for speed in speeds if speed]
    link = recipe_link(recipe, hcas=hcas, gbit=min(known) if known else None)
    platform: Literal["cpu", "cuda"] = "cuda" if all(gpus) else "cpu"
    if platform == "cpu" and recipe.needs.platform == "cuda":
        without = [node.name for node, has in zip(cluster.nodes, gpus, strict=True) if not has]
        raise PlanError(
            f"{recipe.name} is for nodes with a GPU, and none answers on {', '.join(without)}",
            host=", ".join(without),
            step="look at the nodes",
            next="leave --cluster out to plan for Sparks as they come; `glmspark doctor --cluster` says what "
            "is wrong with the driver",
        )
    return Site(tuple(seats), link, platform, measured=True)


def _speed(facts: Facts, interfaces: list[str]) -> float | None:
    """Gbit/s of the fastest of a node's fabric interfaces."""
    known = facts.get(LINKS) or ()
    rates = [one.speed for one in known if one.name in interfaces and one.speed]
    return max(rates) / 1000 if rates else None
