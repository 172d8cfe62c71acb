"""Plan, apply and restore on many nodes at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from glmspark.config.cluster import Cluster
from glmspark.nodes.facts.everything import EVERYTHING
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import Node
from glmspark.nodes.ssh import Address
from glmspark.nodes.survey import Facts, survey
from glmspark.nodes.transport import NodeError
from glmspark.nodes.tuning import TunePlan
from glmspark.nodes.tuning.guard import wishes
from glmspark.nodes.tuning.journal import Journal
from glmspark.nodes.tuning.plan import KEYS, SWAP_SIZE, plan
from glmspark.nodes.tuning.tuner import Tuner, set_sysctl

T = TypeVar("T")
Said = Callable[[str], None]
Where = Mapping[str, Address | None]

DROP_CACHES = set_sysctl("vm.drop_caches", 3)
COMPACT = set_sysctl("vm.compact_memory", 1)


def _quiet(_: str) -> None:
    pass


async def plans(
    where: Where,
    *,
    swap_size: int = SWAP_SIZE,
    only: Collection[str] = KEYS,
    cluster: Cluster | None = None,
) -> dict[str, TunePlan | NodeError]:
    """What would be tuned on each node. cluster: whose nodes these are, if any's."""

    async def one(node: Node) -> Facts:
        return await survey(node, EVERYTHING)

    found = await _on_all(where, one)
    facts = {name: seen for name, seen in found.items() if isinstance(seen, Facts)}
    guards = wishes(facts, cluster) if "guard" in only else {}
    return {
        name: plan(seen, swap_size=swap_size, only=only, guard=guards.get(name))
        if isinstance(seen, Facts)
        else seen
        for name, seen in found.items()
    }


async def apply(
    plans: Mapping[str, TunePlan], where: Where, *, said: Said = _quiet
) -> dict[str, NodeError | None]:
    """Make the changes of each node's plan."""

    async def one(node: Node) -> None:
        await Tuner(node, sudo=await _needs_sudo(node), said=said).apply(plans[node.host])

    return await _on_all({name: where[name] for name in plans}, one)


async def restore(where: Where, *, said: Said = _quiet) -> dict[str, list[str] | NodeError]:
    """Take back all that was tuned on each node; what was left alone, by node."""

    async def one(node: Node) -> list[str]:
        return await Tuner(node, sudo=await _needs_sudo(node), said=said).restore()

    return await _on_all(where, one)


async def journals(where: Where) -> dict[str, Journal | NodeError]:
    """What is tuned on each node now."""

    async def one(node: Node) -> Journal:
        return await Tuner(node, sudo=await _needs_sudo(node)).journal()

    return await _on_all(where, one)


async def drop_page_cache(where: Where) -> dict[str, NodeError | None]:
    """Write back and drop the page cache, and put free memory together into large blocks."""

    async def one(node: Node) -> None:
        sudo = ["sudo", "-n"] if await _needs_sudo(node) else []
        await node.must(["sync"], "write back", timeout=120)
        await node.must([*sudo, *DROP_CACHES], "drop the page cache", timeout=120)
        await node.must([*sudo, *COMPACT], "compact memory", timeout=120)

    return await _on_all(where, one)


async def _needs_sudo(node: Node) -> bool:
    return (await node.must(["id", "-u"], "ask who we are")).stdout.strip() != "0"


async def _on_all(where: Where, work: Callable[[Node], Awaitable[T]]) -> dict[str, T | NodeError]:
    async with Fleet(where) as fleet:
        results = await fleet.each(work)
        return {name: fleet.lost[name] if name in fleet.lost else results[name] for name in where}
