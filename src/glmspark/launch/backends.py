"""What starts the ranks of a cluster: vLLM's own multi-node mode, Ray, or lockstep. Pure functions.

Each is a command line after the interpreter and the variables that only it needs; all else about a rank is
the same whatever starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glmspark.plan import Plan

__all__ = ["BACKENDS", "Backend"]


@dataclass(frozen=True)
class Backend:
    """words(plan, rank): the command after the interpreter. env(plan, rank, secret file): its variables."""

    words: Callable[[Plan, int], list[str]]
    env: Callable[[Plan, int, str], dict[str, str]]


def _listen(plan: Plan, rank: int) -> list[str]:
    """Rank 0 has the API."""
    return ["--host", plan.endpoint.host, "--port", str(plan.endpoint.port)] if rank == 0 else []


def _serve(plan: Plan) -> list[str]:
    return ["-m", "glmspark.engine.serve", plan.model_dir, *plan.flag_words()]


def _mp_words(plan: Plan, rank: int) -> list[str]:
    words = _serve(plan)
    if plan.world > 1:
        words += ["--nnodes", str(plan.world), "--node-rank", str(rank)]
        words += ["--master-addr", plan.ranks[0].address, "--master-port", str(plan.ports.master)]
    return [*words, *(_listen(plan, rank) or ["--headless"])]


def _ray_words(plan: Plan, rank: int) -> list[str]:
    return [
        *("-m", "glmspark.engine.ray_node", "--head" if rank == 0 else "--worker"),
        *("--address", f"{plan.ranks[0].address}:{plan.ports.engine}"),
        *("--node-ip", plan.ranks[rank].address, "--nodes", str(plan.world)),
        *("--join-limit", str(plan.limits.join), "--"),
        *(plan.model_dir, *plan.flag_words(), *_listen(plan, rank)),
    ]


def _ray_env(plan: Plan, rank: int, secret: str) -> dict[str, str]:  # noqa: ARG001 - the same on every rank
    return {"GLMSPARK_RAY_SECRET_FILE": secret}


def _lockstep_words(plan: Plan, rank: int) -> list[str]:
    return [*_serve(plan), "--distributed-executor-backend", "glmspark-lockstep", *_listen(plan, rank)]


def _lockstep_env(plan: Plan, rank: int, secret: str) -> dict[str, str]:
    """torchrun's variables, as the external launcher reads them."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.world),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": plan.ranks[0].address,
        "MASTER_PORT": str(plan.ports.engine),
        "GLMSPARK_LOCKSTEP_SECRET_FILE": secret,
        "GLMSPARK_LOCKSTEP_START_S": str(plan.limits.start),
    }


BACKENDS: Mapping[str, Backend] = {
    "mp": Backend(_mp_words, lambda *_: {}),
    "ray": Backend(_ray_words, _ray_env),
    "lockstep": Backend(_lockstep_words, _lockstep_env),
}
