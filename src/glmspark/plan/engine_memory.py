"""What a rank on a GPU takes beside weights and KV cache: estimates, each with where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glmspark.config.recipe import Recipe
from glmspark.models.architecture import Architecture
from glmspark.models.published import find_drafter

__all__ = ["activations", "drafter_bytes", "graph_bytes", "indexer_scratch", "loader_bytes", "network_bytes"]

MIB, GIB = 2**20, 2**30

_GRAPHS_BASE, _GRAPH = 512 * MIB, 92 * MIB
"""Published for GLM-5.2 at TP4: 1.01 GiB with 6 shapes, 2.14 to 2.25 GiB with 18 (0xdfi's R9)."""

_CHANNEL = 10 * MIB
"""NCCL's buffers of one channel to one peer: 4 MiB for its simple protocol each way, the others in the rest.
rhys101 measured 11.6 GiB at TP8 with NCCL's own choice of channels, 0.4 with 8 channels of 1 MiB buffers."""
_CHANNELS = 8

_LOGITS_MIB = 512
"""VLLM_SPARSE_INDEXER_MAX_LOGITS_MB's default (vllm/envs.py)."""
_GATHER_ENTRY = 8 * 132
"""Bytes of the indexer's gathered keys a token of context and factor: `get_max_prefill_buffer_size` in
vllm/v1/attention/backends/mla/indexer.py; factor 5 up to 262,144 tokens, else 2 (vllm/config/vllm.py)."""

_SHARD = 5 * GIB
"""Page cache that a loader of mapped files needs at least: a shard. Without it the spark loader's buffers."""
_SPARK_BUFFERS = 512 * MIB


def activations(recipe: Recipe, architecture: Architecture, *, tp: int, drafts: int) -> int:
    """Activations of one full step, for which the profiling run at the start takes the room: some tensors
    of the hidden size, both sides of the experts' matrices for every chosen expert, and the logits in
    float32."""
    engine = recipe.engine
    batched, hidden = engine.max_num_batched_tokens, architecture.hidden_size
    chosen = batched * architecture.experts_per_token
    experts = chosen * (max(2 * architecture.moe_intermediate_size // tp, hidden) + hidden) * 2
    logits = engine.max_num_seqs * (1 + drafts) * architecture.vocab_size * 4 * 2
    return batched * hidden * 2 * 16 + experts + logits


def indexer_scratch(recipe: Recipe, architecture: Architecture, *, context: int) -> int:
    """The indexer's work space: its scores, context x batched tokens up to a limit, and the gathered keys."""
    engine = recipe.engine
    limit = _number(engine.env.get("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"), _LOGITS_MIB) * MIB
    entries = -(-context // architecture.index_pool)
    scores = min(entries * engine.max_num_batched_tokens * 4, limit)
    factor = _args(engine.args.get("attention_config")).get("sparse_mla_prefill_workspace_factor")
    most = max(5 * min(context, 256 * 1024), 2 * context)
    gathered = factor * context if isinstance(factor, int) else most
    return scores + gathered * _GATHER_ENTRY // architecture.index_pool


def _args(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def graph_bytes(recipe: Recipe, sizes: Sequence[int]) -> int:
    """CUDA graphs of so many shapes; nothing where the recipe runs eagerly."""
    return 0 if recipe.engine.enforce_eager else _GRAPHS_BASE + _GRAPH * len(sizes)


def network_bytes(recipe: Recipe, *, tp: int, pp: int, dcp: int) -> int:
    """NCCL's buffers: communicators x channels x peers. NCCL_MAX_NCHANNELS and NCCL_BUFFSIZE count."""
    ranks = tp * pp
    if ranks == 1:
        return 0
    env = recipe.engine.env
    channels = _number(env.get("NCCL_MAX_NCHANNELS"), _CHANNELS)
    channel = _number(env.get("NCCL_BUFFSIZE"), 4 * MIB) * _CHANNEL // (4 * MIB)
    communicators = 1 + (tp > 1) + (pp > 1) + (dcp > 1)
    return communicators * channels * (ranks - 1) * channel


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 12 else default


def drafter_bytes(recipe: Recipe, *, tp: int) -> int:
    """A drafter's own checkpoint on a rank, with its window of keys and values for every sequence."""
    draft = recipe.draft
    if draft is None or draft.source is None:
        return 0
    known = find_drafter(draft.source.name)
    if known is None:
        return 0
    window = min(known.window or recipe.engine.max_model_len, recipe.engine.max_model_len)
    heads = max(known.kv_heads // tp, 1)
    cache = known.layers * 2 * heads * known.head_dim * 2 * window * recipe.engine.max_num_seqs
    return known.nbytes // tp + cache


def loader_bytes(recipe: Recipe) -> int:
    """Memory that reading the weights takes: page cache, or the spark loader's own buffers."""
    return _SPARK_BUFFERS if recipe.engine.args.get("load_format") == "spark" else _SHARD
