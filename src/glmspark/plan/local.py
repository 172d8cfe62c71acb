"""The plan of a recipe on one machine, without a GPU: a pure function of recipe, checkpoint and facts."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator

from glmspark.config.recipe import Recipe
from glmspark.config.units import format_size
from glmspark.models.checkpoint import Checkpoint
from glmspark.plan.errors import PlanError
from glmspark.plan.facts import MachineFacts
from glmspark.plan.flags import engine_env, engine_flags
from glmspark.plan.memory import BLOCK_TOKENS, ELEMENT_BYTES, kv_bytes_per_token, weight_bytes
from glmspark.plan.plan import Endpoint, Limits, Memory, Plan, Rank
from glmspark.plan.split import Place, check_layout, places

__all__ = ["plan_local"]

MIB = 2**20

WORKER_BYTES = 700 * MIB
API_BYTES = 900 * MIB
RESERVE_BYTES = 512 * MIB
"""Left to the rest of the machine."""

_CPU_MLA_WIDTH = 576


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
    _check_endpoint(host, port)
    check_layout(architecture, tp, pp)
    _check_context(recipe, checkpoint, facts)
    _check_drafter(recipe, checkpoint)
    ranks = tuple(
        _rank(recipe, checkpoint, place, facts, tp=tp, world=tp * pp)
        for place in places(len(architecture.layers), tp, pp)
    )
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
        kv_tokens=min(rank.kv_tokens for rank in ranks),
        flags=engine_flags(recipe, tp=tp, pp=pp),
        env=engine_env(recipe),
        warnings=_warnings(ranks, facts),
    )


def _check_endpoint(host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise PlanError(f"port {port} does not exist", step="plan", next="choose --port from 1 to 65535")
    if not host or any(character.isspace() or character == "/" for character in host):
        raise PlanError(f"{host!r} is not an address", step="plan", next="write --host 127.0.0.1")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if host.replace(".", "").isdigit():
            raise PlanError(f"{host} is not an IPv4 address", step="plan") from None


def _check_context(recipe: Recipe, checkpoint: Checkpoint, facts: MachineFacts) -> None:
    architecture, engine = checkpoint.architecture, recipe.engine
    length, trained, topk = engine.max_model_len, architecture.max_position, architecture.index_topk
    if length > trained:
        raise PlanError(
            f"max_model_len {length} exceeds the {trained} positions the model was made for",
            step="plan the context",
            next=f"set engine.max_model_len to at most {trained}",
        )
    if topk is not None and length > topk and not facts.sparse_attention and not engine.dense_attention:
        raise PlanError(
            f"max_model_len {length} exceeds the model's index_topk of {topk}, and there is no sparse "
            f"attention on the {facts.platform.upper()}",
            host=facts.hostname,
            step="plan the context",
            seen="beyond index_topk tokens the model was trained to attend to a choice of them; attending to "
            "all is another model",
            next=f"set engine.max_model_len to at most {topk}, or engine.dense_attention: true if meant",
        )
    if architecture.kv_latent != _CPU_MLA_WIDTH:
        raise PlanError(
            f"the model's MLA latent has {architecture.kv_latent} elements; vLLM's CPU kernel takes "
            f"{_CPU_MLA_WIDTH} only",
            step="plan",
            seen=f"kv_lora_rank {architecture.kv_lora_rank}, "
            f"qk_rope_head_dim {architecture.qk_rope_head_dim}",
        )


def _check_drafter(recipe: Recipe, checkpoint: Checkpoint) -> None:
    if _drafts_with_mtp(recipe) and not checkpoint.has_mtp:
        raise PlanError(
            "speculative_config asks for method mtp, and the checkpoint has no MTP layer",
            step="plan the drafter",
            seen=str(checkpoint.directory),
            next="remove speculative_config, or use method ngram",
        )


def _drafts_with_mtp(recipe: Recipe) -> bool:
    config = recipe.engine.args.get("speculative_config")
    return isinstance(config, dict) and config.get("method") == "mtp"


def _element(recipe: Recipe) -> int:
    """Bytes of an element in the engine's dtype. vLLM's "auto" never means float32: it lowers a float32
    checkpoint to 16 bits (`vllm.config.model._get_and_verify_dtype`)."""
    dtype = recipe.engine.dtype
    return 2 if dtype == "auto" else ELEMENT_BYTES[dtype]


def _rank(
    recipe: Recipe, checkpoint: Checkpoint, place: Place, facts: MachineFacts, *, tp: int, world: int
) -> Rank:
    element = _element(recipe)
    weights = weight_bytes(
        checkpoint, place, tp=tp, element=element, indexer=False, mtp=_drafts_with_mtp(recipe)
    )
    block = BLOCK_TOKENS * kv_bytes_per_token(checkpoint, place, element=element)
    blocks = recipe.engine.kv_cache_memory // block
    length = recipe.engine.max_model_len
    wanted = -(-length // BLOCK_TOKENS)
    if blocks < wanted:
        raise PlanError(
            f"kv_cache_memory {format_size(recipe.engine.kv_cache_memory)} does not hold one request of "
            f"{length} tokens, which takes {format_size(wanted * block)} on rank {place.rank}",
            host=facts.hostname,
            step="plan the KV cache",
            next=f"set engine.kv_cache_memory to at least {-(-wanted * block // MIB)}MiB, or "
            f"engine.max_model_len to at most {blocks * BLOCK_TOKENS}",
        )
    process = WORKER_BYTES + (API_BYTES if place.rank == 0 else 0)
    total = weights + recipe.engine.kv_cache_memory + process
    return Rank(
        rank=place.rank,
        tp_rank=place.tp_rank,
        pp_rank=place.pp_rank,
        host=facts.hostname,
        layers=place.layers,
        cpus=_cores(facts.cpus, place.rank, world),
        memory=Memory(
            weights=weights,
            kv_cache=recipe.engine.kv_cache_memory,
            process=process,
            needed=max(total, recipe.needs.memory_per_rank or 0),
        ),
        kv_tokens=blocks * BLOCK_TOKENS,
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
    spare = recipe.engine.kv_cache_memory * len(ranks)
    advice = "stop what else runs here, or choose fewer ranks"
    if len(ranks) == 1:
        advice = "stop what else runs here"
    if short < spare and not recipe.needs.memory_per_rank:
        advice += f"; or set engine.kv_cache_memory to at most {(spare - short) // len(ranks) // MIB}MiB"
    raise PlanError(
        f"does not fit: {len(ranks)} rank{'s' * (len(ranks) > 1)} need {format_size(needed)}, "
        f"{format_size(usable)} is free: {format_size(short)} short",
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
        f"+ process {format_size(memory.process)}"
    )
    if memory.needed > memory.weights + memory.kv_cache + memory.process:
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
