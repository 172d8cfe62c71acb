"""All checks, in the order people read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glmspark.nodes.checks import (
    Look,
    Verdict,
    access,
    alike,
    containers,
    daemons,
    disk,
    fabric,
    gpu_clock,
    guard,
    inside,
    kernel,
    login,
    memory,
    needs,
)
from glmspark.nodes.survey import Facts


def judge(look: Look) -> list[Verdict]:
    """Every verdict on what was seen: nodes first, then what concerns them together."""
    verdicts = list(access.reachable(look))
    for facts in look.facts.values():
        verdicts += _node(facts, look)
    verdicts += access.skew(look)
    for check in (alike.versions, alike.same_image, inside.what_ranks_find, alike.same_nccl):
        verdicts += check(look)
    verdicts += gpu_clock.under_load(look)
    verdicts += needs.recipe(look)
    for check in (fabric.cabling, fabric.links, fabric.speeds, fabric.rdma, fabric.reach):
        verdicts += check(look)
    return verdicts


def _node(facts: Facts, look: Look) -> Iterator[Verdict]:
    expected = look.expected
    found: Iterable[Verdict | None] = (
        access.sudo(facts),
        access.synchronised(facts),
        kernel.version(facts),
        kernel.log(facts),
        containers.gpu(facts),
        containers.engine(facts, expected),
        containers.toolkit(facts, expected),
        *disk.space(facts, expected),
        memory.free(facts, expected),
        memory.gpu_free(facts),
        memory.page_cache(facts),
        memory.large_blocks(facts),
        memory.shared(facts),
        memory.reserved(facts),
        memory.swap(facts),
        memory.watermark(facts, expected),
        kernel.reclaim(facts),
        kernel.forwarding(facts, expected),
        login.remove_ipc(facts, expected),
        login.locked_memory(facts, expected),
        login.verbs(facts, expected),
        daemons.rivals(facts),
        daemons.graphical(facts),
        guard.runs(facts),
        daemons.ports(facts, expected),
    )
    return (one for one in found if one is not None)
