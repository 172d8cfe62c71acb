"""The plan of a recipe on one machine, without a GPU: a pure function of recipe, checkpoint and facts."""

from __future__ import annotations

from typing import Literal

from glmspark.config.recipe import Recipe
from glmspark.models.checkpoint import Checkpoint
from glmspark.models.outline import outline_of
from glmspark.plan.checks import check_context, check_drafter, check_endpoint
from glmspark.plan.errors import PlanError
from glmspark.plan.facts import MachineFacts
from glmspark.plan.flags import engine_env, engine_flags
from glmspark.plan.known_bad import check_known_bad
from glmspark.plan.plan import Endpoint, Plan, Rank
from glmspark.plan.ranks import check_memory, kv_tokens, limits, make_rank, share_cores
from glmspark.plan.setting import Setting
from glmspark.plan.split import check_layout, places

__all__ = ["plan_local"]


def plan_local(
    recipe: Recipe,
    checkpoint: Checkpoint,
    *,
    facts: MachineFacts,
    tp: int | None = None,
    pp: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    backend: Literal["mp", "lockstep"] = "mp",
) -> Plan:
    """Plan a recipe on this machine's CPU. Changes nothing and asks nothing: all it knows is in `facts`.

    tp, pp: instead of the recipe's layout; where only one is given the other is 1. host, port: where the API
    listens. backend: what holds the ranks together. Raises PlanError for a layout the model cannot be split
    by, a context that dense attention would answer differently from the model, a KV cache too small for one
    full request, and too little memory.
    """
    if facts.platform != "cpu":
        raise PlanError(
            f"one machine's plan is for its CPU; {facts.hostname} offers {facts.platform}",
            host=facts.hostname,
            step="plan",
        )
    if tp is None and pp is None:
        tp, pp = recipe.layout.tp, recipe.layout.pp
    tp, pp = 1 if tp is None else tp, 1 if pp is None else pp
    architecture = checkpoint.architecture
    check_endpoint(host, port)
    check_layout(architecture, tp, pp)
    check_context(recipe, checkpoint, facts)
    check_drafter(recipe, checkpoint)
    check_known_bad(Setting(recipe, checkpoint, "cpu", tp=tp, pp=pp))
    where = places(len(architecture.layers), tp, pp)
    outline = outline_of(checkpoint)
    tokens = kv_tokens(recipe, outline, where, facts, tp=tp)
    ranks = tuple(
        make_rank(
            recipe,
            outline,
            place,
            facts,
            tp=tp,
            pp=pp,
            tokens=tokens,
            cpus=share_cores(facts.cpus, place.rank, len(where)),
        )
        for place in where
    )
    check_memory(recipe, ranks, facts.memory_available)
    weights = sum(rank.memory.weights for rank in ranks)
    return Plan(
        recipe=recipe.name,
        model_dir=str(checkpoint.directory.absolute()),
        served_name=recipe.model.served_name,
        tp=tp,
        pp=pp,
        ranks=ranks,
        endpoint=Endpoint(host=host, port=port),
        limits=limits(weights, max(1.0, len(ranks) / max(len(facts.cpus), 1))),
        kv_tokens=tokens,
        backend=backend,
        flags=engine_flags(recipe, tp=tp, pp=pp),
        env=engine_env(recipe),
        warnings=_warnings(ranks, facts),
    )


def _warnings(ranks: tuple[Rank, ...], facts: MachineFacts) -> tuple[str, ...]:
    if len(ranks) <= len(facts.cpus):
        return ()
    cores = len(facts.cpus)
    return (
        f"{len(ranks)} ranks share {cores} core{'s' * (cores > 1)}: they wait for each other and are slow",
    )
