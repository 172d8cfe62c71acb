"""What a rank holds, in bytes: weights, KV cache and the process itself."""

from __future__ import annotations

from math import prod

from glmspark.models.checkpoint import Checkpoint, Stored
from glmspark.plan.split import Place, padded_vocab

__all__ = ["BLOCK_TOKENS", "ELEMENT_BYTES", "kv_bytes_per_token", "prefill_bytes", "weight_bytes"]

BLOCK_TOKENS = 16
"""Tokens of a KV cache block on the CPU: its MLA kernel takes no other size (vllm/platforms/cpu.py)."""

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_FLOATS = {"F64", "F32", "F16", "BF16"}
_MAIN_PARTS = (".weight", ".weight_packed")
"""The one part that each weight has, quantized or not; scales and zero points come beside it."""


def weight_bytes(
    checkpoint: Checkpoint, place: Place, *, tp: int, element: int, indexer: bool, mtp: bool
) -> int:
    """Weights of one rank after loading, in bytes.

    element: bytes of one element in the engine's dtype, to which unquantized weights are converted; quantized
    ones stay as stored. indexer, mtp: whether those are loaded. Split weights count 1/tp, the others (norms,
    router, MLA down-projections, indexer) whole. MLA keeps its up-projection twice: as kv_b_proj for prefill
    and as W_UK_T and W_UV, in the engine's dtype, for decoding (vLLM's MLAAttention).
    """
    start, end = place.layers
    total = 0
    for tensor in checkpoint.tensors:
        spec = tensor.spec
        if spec is None or (spec.kind == "indexer" and not indexer):
            continue
        if spec.layer is None:
            if not _on_stage(spec.kind, place, tied=checkpoint.architecture.tied_embeddings, mtp=mtp):
                continue
        elif spec.layer.mtp:
            if not (mtp and place.last_stage):
                continue
        elif not start <= spec.layer.index < end:
            continue
        size = _loaded_bytes(tensor, element)
        if spec.kind in ("embedding", "lm_head"):
            vocab = checkpoint.architecture.vocab_size
            size = size * padded_vocab(vocab) // vocab
        total += size // tp if spec.tp else size
        if spec.name.endswith(".kv_b_proj.weight") and tensor.name.endswith(_MAIN_PARTS):
            total += prod(spec.shape) * element // tp
    return total


def _on_stage(kind: str, place: Place, *, tied: bool, mtp: bool) -> bool:
    """Whether a weight outside the layers lies on this stage. The drafter needs the embedding, too."""
    if kind == "embedding":
        return place.first_stage or (place.last_stage and (tied or mtp))
    return place.last_stage


def _loaded_bytes(tensor: Stored, element: int) -> int:
    if tensor.info.dtype not in _FLOATS:
        return tensor.info.nbytes
    return tensor.info.elements * element


def kv_bytes_per_token(checkpoint: Checkpoint, place: Place, *, element: int, indexer: bool = False) -> int:
    """KV cache of one token on one rank in bytes: MLA's latent and rotary key for each of the stage's layers.

    Every tensor-parallel rank holds it whole. indexer: with the keys of DSA's indexers, one byte an element
    and a float32 scale (vllm/model_executor/layers/sparse_attn_indexer.py).
    """
    start, end = place.layers
    architecture = checkpoint.architecture
    size = (end - start) * architecture.kv_latent * element
    if indexer:
        own = sum(layer.indexer == "full" for layer in architecture.layers[start:end])
        size += own * (architecture.index_head_dim + 4)
    return size


def prefill_bytes(checkpoint: Checkpoint, tokens: int, *, tp: int) -> int:
    """Scratch of the CPU's prefill attention for one prompt of so many tokens, in bytes.

    vLLM's CPU_SDPA_MLA backend computes a whole prompt at once in float32: per head and pair of tokens a
    score and its scaled copy or its softmax (8 bytes), and for all heads two masks (2 bytes). Several prompts
    in a step share one token budget, so their squares sum to no more. Measured at 8,192 tokens and 2 heads:
    1,270 MiB over idle, of which this formula gives 1,152 MiB.
    """
    heads = checkpoint.architecture.heads // tp
    return tokens * tokens * (8 * heads + 2)
