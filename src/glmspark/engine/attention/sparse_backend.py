"""A sparse MLA backend for vLLM by our kernel: any CUDA device, with LSE, so that DCP and DSA go together.

Imported by vLLM in a worker, by the name that `patches/sparse_decode.py` registers.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.sparse_mla_attention import SparseMLACommonImpl
from vllm.v1.attention.backends.mla.flashinfer_mla_sparse import FlashInferMLASparseSM120Backend
from vllm.v1.attention.backends.mla.sparse_utils import (
    flat_kv_row_view,
    triton_filter_and_convert_dcp_index,
)

from glmspark.engine.attention import decode
from glmspark.engine.attention.layout import Format, cache_of

PACKED = "fp8_ds_mla"


class SparseMLABackend(FlashInferMLASparseSM120Backend):
    """Upstream's backend of sparse MLA on compute capability 12, but for the kernel and its limits."""

    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "bfloat16", PACKED]

    @staticmethod
    def get_name() -> str:
        """The name that vLLM leaves to others."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Any]:
        """The class that attends."""
        return SparseMLAImpl

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """From Ada on: fp8 is a type of the hardware."""
        return (capability.major, capability.minor) >= (8, 9)

    @classmethod
    def supports_combination(cls, *_args: Any, **_kwargs: Any) -> str | None:
        """None, or why not: the model must choose its keys."""
        config = get_current_vllm_config().model_config
        if config is not None and getattr(config.hf_text_config, "index_topk", None) is None:
            return "the model has no index_topk"
        return None


class SparseMLAImpl(SparseMLACommonImpl):  # type: ignore[type-arg, misc]
    """Attends by `decode.sparse`, prefill too: every token chooses its own keys. The LSE is float32."""

    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_mtp_with_cp_non_trivial_interleave_size: bool = True
    supports_dense_mha_prefill: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_quant_query_input = False
        if get_current_vllm_config().attention_config.hisparse_config is not None:
            raise ValueError("glmspark's sparse attention keeps the KV cache on the device: no HiSparse")

    def forward_mqa(
        self,
        q: Any,
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        layer: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Out [rows, heads, 512] over this rank's part of the chosen keys, and the LSE where DCP needs it."""
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        rows = query.shape[0]
        chosen = self.topk_indices_buffer[:rows]
        tokens, stride = flat_kv_row_view(kv_c_and_k_pe_cache, attn_metadata.block_size)
        slots, counts = triton_filter_and_convert_dcp_index(
            attn_metadata.req_id_per_token[:rows],
            attn_metadata.block_table,
            chosen,
            dcp_size=self.dcp_world_size,
            dcp_rank=self.dcp_rank,
            cp_kv_cache_interleave_size=attn_metadata.cp_kv_cache_interleave_size,
            BLOCK_SIZE=attn_metadata.block_size,
            BLOCK_STRIDE_ROWS=stride,
            NUM_TOPK_TOKENS=chosen.shape[1],
            return_valid_counts=True,
        )
        kind = Format.PACKED if self.kv_cache_dtype == PACKED else Format.PLAIN
        cache = cache_of(tokens.unsqueeze(1), kind, query.shape[-1] - self.kv_lora_rank)
        out, lse = decode.sparse(query, cache, slots, counts, self.scale)
        return out, lse if self.need_to_return_lse_for_decode else None
