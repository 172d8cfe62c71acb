"""vLLM's TRITON_MLA with our decode kernel: verification under DCP decodes like everything else.

Imported by vLLM in a worker, under the name CUSTOM, which `patches/dense_decode.py` gives it.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import envs
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.mla_attention import MLACommonMetadataBuilder
from vllm.v1.attention.backends.mla.triton_mla import (
    TritonMLABackend,
    TritonMLAImpl,
    TritonMLAMetadataBuilder,
)

from glmspark.engine.attention import decode
from glmspark.engine.attention.layout import Format, cache_of


class DenseMLAMetadataBuilder(TritonMLAMetadataBuilder):
    """Requests of several rows are decoded under DCP, too; upstream sends them through the prefill."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        # Not TritonMLAMetadataBuilder's own: it reserves scratch for rows x heads x splits of its kernel, at
        # 1M tokens gigabytes. Ours takes what fills the device's multiprocessors, whatever the context.
        MLACommonMetadataBuilder.__init__(
            self, kv_cache_spec, layer_names, vllm_config, device, supports_dcp_with_varlen=True
        )
        self.supports_draft_decode_metadata_update = self.dcp_world_size == 1


class DenseMLABackend(TritonMLABackend):
    """TRITON_MLA in all that it supports."""

    @staticmethod
    def get_name() -> str:
        """The name that vLLM leaves to others."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Any]:
        """The class that attends."""
        return DenseMLAImpl

    @staticmethod
    def get_builder_cls() -> type[Any]:
        """The class that prepares a step."""
        return DenseMLAMetadataBuilder


class DenseMLAImpl(TritonMLAImpl):
    """Attends by `decode.dense`. The LSE is float32."""

    supports_mtp_with_cp_non_trivial_interleave_size: bool = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.interleave = get_current_vllm_config().parallel_config.cp_kv_cache_interleave_size

    def reserve_workspace(self) -> None:
        """Nothing: the kernel's scratch does not grow with the context."""

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Out [rows, heads, 512] and LSE [rows, heads] over this rank's part of the cache."""
        asked = attn_metadata.decode
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        kind = Format.FP8 if self.kv_cache_dtype.startswith("fp8") else Format.PLAIN
        cache = cache_of(kv_c_and_k_pe_cache, kind, query.shape[-1] - self.kv_lora_rank, layer._k_scale)
        count = asked.seq_lens.shape[0]
        whole = asked.seq_lens if self.dcp_world_size == 1 else asked.dcp_tot_seq_lens
        requests = decode.Requests(
            block_table=asked.block_table,
            starts=attn_metadata.query_start_loc[: count + 1],
            lengths=whole,
            most_rows=-(-query.shape[0] // count),
            longest=attn_metadata.max_seq_len,
            world=self.dcp_world_size,
            rank=self.dcp_rank,
            interleave=self.interleave,
            causal=attn_metadata.causal,
        )
        splits = 1 if envs.VLLM_BATCH_INVARIANT else None
        return decode.dense(query, cache, requests, self.scale, splits=splits)
