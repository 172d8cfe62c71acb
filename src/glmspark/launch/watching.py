"""What the agents of a deployment judge it by once it serves, from its plan and recipe. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glmspark.config.canaries import AnswerCanary, ConcurrentCanary
from glmspark.config.recipe import Recipe, Restart
from glmspark.launch.command import is_loopback
from glmspark.nodes.facts.memory_detail import MEMORY_DETAIL
from glmspark.plan import Plan
from glmspark.plan.plan import Rank
from glmspark.plan.thresholds import thresholds

if TYPE_CHECKING:
    from glmspark.launch.cluster_prepare import Prepared

__all__ = ["judged_by", "seen_on_head"]

SLOW_PREFILL = {"cpu": 100.0, "cuda": 400.0}
"""Tokens a second that a prompt is read at least, by platform. A step that is slower by far stands still."""
LEAST_STALL = 30.0
"""Seconds: below it a busy machine looks like one that stands still."""
_CANARIES = 4


def seen_on_head(host: str) -> str:
    """The address at which the head itself reaches an API that listens there."""
    if is_loopback(host) or host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return "::1" if ":" in host else "127.0.0.1"
    return host


def stall_seconds(plan: Plan, restart: Restart) -> float:
    """Seconds without a token or a step, while requests run, that are a stall: three times what the largest
    step may take. The agent goes up to five times the longest silence that it has seen while all was well."""
    if restart.stall_s is not None:
        return restart.stall_s
    budget = plan.flags.get("max-num-batched-tokens")
    largest = int(budget) if isinstance(budget, (int, str)) else 2048
    return max(LEAST_STALL, 3 * largest / SLOW_PREFILL[plan.platform])


def judged_by(prepared: Prepared, rank: Rank) -> dict[str, Any]:
    """The part of the spec of a rank's agent that is for the time after ready."""
    plan, recipe = prepared.plan, prepared.wanted.wanted.recipe
    detail = prepared.facts[rank.host].get(MEMORY_DETAIL)
    total = detail.total if detail is not None else 0
    keep_up = prepared.wanted.wanted.request.keep_up
    head = rank.rank == 0
    return {
        "api": api_of(plan) if head else None,
        "canaries": canaries_of(recipe) if head else [],
        "watching": watching_of(plan, recipe.restart, keep_up=keep_up),
        "guard": guard_of(plan, rank, recipe.restart, total),
    }


def watching_of(plan: Plan, restart: Restart, *, keep_up: bool) -> dict[str, Any]:
    """node_agent.spec.Watching of a deployment."""
    stall = stall_seconds(plan, restart)
    return {
        "times": restart.times,
        "minutes": restart.minutes,
        "start": float(plan.limits.start),
        "api": stall,
        "tokens": stall,
        "canary": stall,
        "every": max(15.0, stall / 2),
        "halted": min(5.0, stall),
        "keep_up": keep_up,
    }


def api_of(plan: Plan) -> dict[str, Any]:
    """node_agent.spec.Api: where rank 0's agent finds the API."""
    endpoint = plan.endpoint
    host = seen_on_head(endpoint.host)
    return {"host": host, "listen": endpoint.host, "port": endpoint.port, "model": plan.served_name}


def canaries_of(recipe: Recipe) -> list[dict[str, Any]]:
    """The canaries that an agent can ask by itself, a few of the recipe's: node_agent.spec.Canary."""
    found: list[dict[str, Any]] = []
    for canary in recipe.canaries:
        if isinstance(canary, AnswerCanary):
            cases = [(canary.prompt, canary.expect)]
        elif isinstance(canary, ConcurrentCanary):
            cases = [(case.prompt, case.expect) for case in canary.cases]
        else:
            continue
        for prompt, expect in cases:
            found.append(
                {
                    "prompt": prompt,
                    "expect": expect,
                    "max_tokens": canary.max_tokens,
                    "seconds": float(canary.timeout_s),
                    "thinking": canary.thinking,
                }
            )
    return found[:_CANARIES]


def guard_of(plan: Plan, rank: Rank, restart: Restart, total: int) -> dict[str, Any]:
    """guard.json: the plan's numbers that the node's guard acts by. total: the node's memory, in bytes."""
    host = seen_on_head(plan.endpoint.host)
    shown = f"[{host}]" if ":" in host else host
    return {
        "version": 1,
        "rank": rank.rank,
        **thresholds(rank.memory, total),
        "metrics_url": f"http://{shown}:{plan.endpoint.port}/metrics" if rank.rank == 0 else None,
        "unified": None,
        "fabric": list(rank.interfaces or (rank.interface,)),
        "stall_s": stall_seconds(plan, restart),
    }
