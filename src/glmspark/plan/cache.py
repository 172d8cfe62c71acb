"""The KV cache of one rank: bytes of a token by format, states of linear attention, and how many tokens
fit."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.models.architecture import Architecture, Layer
from glmspark.plan.errors import PlanError
from glmspark.plan.split import Place

__all__ = ["CacheFormat", "TokenBytes", "cache_format", "sequence_bytes", "token_bytes", "tokens_in"]

BLOCK_TOKENS = 16
"""Tokens of a KV cache block on the CPU: its MLA kernel takes no other size (vllm/platforms/cpu.py)."""

INDEXER_SCALE = 4
"""A float32 scale beside the indexer key's bytes (vllm/model_executor/layers/sparse_attn_indexer.py)."""

_PACKED = {
    # 512 fp8 values, four float32 scales, 64 bf16 rotary elements (vLLM, FlashMLA's format).
    "fp8_ds_mla": 656,
    # 512 four-bit values with 32 fp8 scales, rotary part in fp8 with its scale: b12x's writer for sm_12x.
    "nvfp4_ds_mla": 368,
}
_PACKED_NOPE = {"nvfp4": 288}
"""Of models whose MLA has no rotary part: 512 four-bit values and 32 fp8 scales (coolbho3k's native
format)."""

_ELEMENTS = {"auto": 0, "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}

UNLIMITED = 2**62
"""Tokens of a pool that has to keep nothing of them."""


@dataclass(frozen=True)
class CacheFormat:
    """latent: bytes of a token and layer of MLA. indexer: of a token and indexer key, before pooling."""

    name: str
    latent: int
    indexer: float


@dataclass(frozen=True)
class TokenBytes:
    """Bytes of one token in the KV cache of one rank, context parallelism not counted."""

    latent: float
    indexer: float
    drafter: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.latent + self.indexer + self.drafter


def cache_format(architecture: Architecture, dtype: str, *, element: int, sparse: bool) -> CacheFormat:
    """The format that vLLM's kv_cache_dtype means for this model. element: bytes of the engine's dtype, which
    "auto" stands for. sparse: whether attention is DSA. Raises PlanError for an unknown name."""
    width = architecture.kv_latent
    indexer = float(architecture.index_head_dim + INDEXER_SCALE) if sparse else 0.0
    if dtype in _PACKED:
        return CacheFormat(dtype, _PACKED[dtype], indexer)
    if dtype in _PACKED_NOPE and architecture.qk_rope_head_dim == 0:
        return CacheFormat(dtype, _PACKED_NOPE[dtype], indexer)
    if dtype.startswith("fp8"):
        # Sparse attention takes the packed format; a model without a rotary part has nothing to pack.
        packed = sparse and architecture.qk_rope_head_dim > 0
        return CacheFormat(
            "fp8_ds_mla" if packed else dtype, _PACKED["fp8_ds_mla"] if packed else width, indexer
        )
    if dtype in _ELEMENTS:
        return CacheFormat(dtype, width * (_ELEMENTS[dtype] or element), indexer)
    raise PlanError(
        f"kv_cache_dtype {dtype} is not known to the plan",
        step="plan the KV cache",
        next=f"use {', '.join([*_ELEMENTS, 'fp8', *_PACKED, *_PACKED_NOPE])}",
    )


def token_bytes(architecture: Architecture, place: Place, form: CacheFormat, *, mtp: bool) -> TokenBytes:
    """What a token takes on a rank. Every tensor-parallel rank holds the latent whole.

    mtp: with the MTP layer's own entry, on the last stage. Published: 31,976 B for GLM-5.2 in nvfp4_ds_mla
    (0xdfi), which is 79 latents and 22 indexer keys.
    """
    start, end = place.layers
    layers = architecture.layers[start:end]
    drafting = architecture.mtp_layers[:1] if mtp and place.last_stage else ()
    return TokenBytes(
        latent=float(_attending(layers) * form.latent),
        indexer=_indexers(layers) * form.indexer / architecture.index_pool,
        drafter=_attending(drafting) * form.latent
        + _indexers(drafting) * form.indexer / architecture.index_pool,
    )


def _attending(layers: tuple[Layer, ...]) -> int:
    return sum(not layer.linear for layer in layers)


def _indexers(layers: tuple[Layer, ...]) -> int:
    return sum(layer.indexer == "full" for layer in layers)


def sequence_bytes(architecture: Architecture, place: Place, *, tp: int, drafts: int) -> int:
    """States of linear attention of one sequence on a rank, however long it is.

    A layer's recurrent state is float32 [heads, width, width], its convolution's [3 x heads x width, kernel
    - 1 + drafts] in 16 bits; with drafts vLLM keeps one of them for each token that may be taken back
    (vllm/v1/kv_cache_interface.py, MambaSpec).
    """
    linear = architecture.linear
    if linear is None:
        return 0
    start, end = place.layers
    layers = sum(layer.linear for layer in architecture.layers[start:end])
    heads = -(-linear.heads // tp)
    recurrent = heads * linear.width * linear.width * 4
    convolution = 3 * heads * linear.width * (linear.kernel - 1 + drafts) * 2
    return layers * (recurrent + convolution) * (1 + drafts)


def tokens_in(memory: int, token: float, sequence: int, *, context: int, block: int, dcp: int) -> int:
    """Tokens that a pool of `memory` bytes on each rank holds.

    token, sequence: bytes as above. Without states it is whole blocks; with them vLLM says how many
    requests of full length fit, times their length (`get_max_concurrency_for_kv_cache_config`). dcp: ranks
    that share out the tokens of a layer; models with linear attention keep their pool whole (published so
    for Flash: https://github.com/FujitsuPolycom/sparkring/issues/257). A stage whose layers keep nothing
    limits nothing.
    """
    if token <= 0 and not sequence:
        return UNLIMITED
    if not sequence:
        return int(memory // (token * block)) * block * dcp
    request = sequence + -(-context // block) * block * token
    return int(memory / request * context)
