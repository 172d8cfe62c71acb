"""Decode context parallelism for MLA on the CPU, in plain PyTorch.

With DCP every rank of a group keeps each n-th token of the KV cache. A decode step attends to the local
tokens, and the ranks' partial results are combined by their log-sum-exps (LSE): out = sum_r w_r out_r with
w_r = exp(lse_r) / sum_s exp(lse_s). vLLM's CPU backend lacks three things for it: slots for the local tokens,
the LSE, and the combination, which upstream has as Triton kernels. The collectives stay upstream's.
Imported in workers only; see patches/cpu_dcp.py for the why.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm import _custom_ops as ops
from vllm.config import get_current_vllm_config
from vllm.distributed import get_dcp_group
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend, CPUMLAImpl

NOTHING = float("-inf")  # the log-sum-exp over no tokens


def slot_mapping(  # noqa: PLR0913, PLR0917 - the kernel's own arguments
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,  # noqa: ARG001 - the table has two dimensions here
    slot_mapping: torch.Tensor,
    KV_CACHE_BLOCK_SIZE: int,  # noqa: N803 - the kernel's own names: it may be launched by them
    TOTAL_CP_WORLD_SIZE: int = 1,  # noqa: N803
    TOTAL_CP_RANK: int = 0,  # noqa: N803
    CP_KV_CACHE_INTERLEAVE_SIZE: int = 1,  # noqa: N803
    PAD_ID: int = -1,  # noqa: N803
    BLOCK_SIZE: int = 1024,  # noqa: ARG001, N803
) -> None:
    """Where each token's KV goes: its slot in the local cache, or PAD_ID where another rank keeps it.

    Stands for ComputeSlotMappingKernel.kernel: a block holds KV_CACHE_BLOCK_SIZE tokens of each rank, dealt
    out in runs of CP_KV_CACHE_INTERLEAVE_SIZE.
    """
    starts = query_start_loc.long()
    number = int(starts[-1])
    lengths = starts[1:] - starts[:-1]
    requests = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    position = positions[:number].long()
    whole, run = KV_CACHE_BLOCK_SIZE * TOTAL_CP_WORLD_SIZE, CP_KV_CACHE_INTERLEAVE_SIZE
    block = block_table[requests, position // whole].long()
    offset = position % whole
    local = offset // (TOTAL_CP_WORLD_SIZE * run) * run + offset % run
    mine = offset // run % TOTAL_CP_WORLD_SIZE == TOTAL_CP_RANK
    slot_mapping[:number] = torch.where(mine, block * KV_CACHE_BLOCK_SIZE + local, PAD_ID)
    slot_mapping[num_tokens:max_num_tokens].fill_(PAD_ID)


def correct_attn_out(
    out: torch.Tensor, lses: torch.Tensor, cp_rank: int, ctx: Any = None, is_lse_base_on_e: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's share of the result: `out` [tokens, heads, size] times its weight; and the whole LSE.

    `lses`: [ranks, tokens, heads]. The sum of all ranks' shares is the attention over all tokens.
    """
    del ctx
    base = 1.0 if is_lse_base_on_e else 0.6931471805599453
    known = torch.nan_to_num(lses.float() * base, nan=NOTHING, posinf=NOTHING, neginf=NOTHING)
    whole = torch.logsumexp(known, dim=0)
    weight = torch.exp(known[cp_rank] - torch.where(whole == NOTHING, 0.0, whole))
    return (out.float() * weight[..., None]).to(out.dtype), whole / base


def pack_send(  # noqa: PLR0913, PLR0917 - upstream's own arguments
    cp_attn_out: torch.Tensor,
    cp_attn_lse: torch.Tensor,
    send_buffer: torch.Tensor,
    world_size: int,
    h_per_rank: int,
    head_dim: int,
    lse_pack_dim: int,
    seq_lens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
) -> None:
    """Output and LSE of each rank's heads, side by side in `send_buffer` [ranks, tokens, heads, size + LSE].

    A float32 LSE takes `lse_pack_dim` places of the output's type, bit by bit.
    """
    from vllm.v1.attention.ops.dcp import mask_dcp_empty_shards_

    lse = cp_attn_lse.float().contiguous()
    mask_dcp_empty_shards_(lse, seq_lens, query_start_loc)
    tokens = cp_attn_out.shape[0]
    by_rank = cp_attn_out.view(tokens, world_size, h_per_rank, head_dim).transpose(0, 1)
    bits = lse.view(tokens, world_size, h_per_rank, 1).view(cp_attn_out.dtype).transpose(0, 1)
    send_buffer[..., :head_dim] = by_rank
    send_buffer[..., head_dim : head_dim + lse_pack_dim] = bits


def unpack_combine(
    recv_buffer: torch.Tensor, head_dim: int, lse_pack_dim: int, return_lse: bool, is_lse_base_on_e: bool
) -> Any:
    """The attention over all tokens from all ranks' parts, as `pack_send` packed them."""
    from vllm.v1.attention.ops.dcp import _lse_weighted_combine

    outputs = recv_buffer[..., :head_dim]
    bits = recv_buffer[..., head_dim : head_dim + lse_pack_dim].contiguous()
    combined = _lse_weighted_combine(
        outputs.float(), bits.view(torch.float32)[..., 0], return_lse, is_lse_base_on_e
    )
    if return_lse:
        return combined[0].to(outputs.dtype), combined[1]
    return combined.to(outputs.dtype)


def gather_local(
    src_cache: torch.Tensor,
    dst: torch.Tensor,
    block_table: torch.Tensor,
    cu_seq_lens: torch.Tensor,
    batch_size: int,
    seq_starts: torch.Tensor | None = None,
) -> None:
    """The local KV of several requests' contexts, one after the other: vLLM's CPU gather under the name and
    with the arguments that DCP's prefill uses."""
    starts = torch.zeros(batch_size, dtype=torch.int32) if seq_starts is None else seq_starts
    ops.gather_mla_context_cache_cpu(
        src_cache=src_cache, dst=dst, block_table=block_table, starts=starts, cu_seq_lens=cu_seq_lens
    )


class ContextParallelMLAImpl(CPUMLAImpl):
    """vLLM's CPU implementation, whose decode also returns the LSE."""

    can_return_lse_for_decode: bool = True
    supports_dcp: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        group = get_dcp_group()
        parallel = get_current_vllm_config().parallel_config
        self.dcp_world_size, self.dcp_rank = group.world_size, group.rank_in_group
        self.cp_kv_cache_interleave_size = parallel.cp_kv_cache_interleave_size
        self.need_to_return_lse_for_decode = True

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of one query token a request to its local tokens, and the LSE [requests, heads].

        A request without local tokens gets zeros and -inf.
        """
        del layer
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        lengths = attn_metadata.decode.seq_lens.tolist()
        if len(lengths) != query.shape[0]:
            raise RuntimeError(f"{query.shape[0]} tokens of {len(lengths)} requests; it takes one each")
        size = kv_c_and_k_pe_cache.shape[1]
        out = query.new_zeros(*query.shape[:2], self.kv_lora_rank)
        lse = torch.full(query.shape[:2], NOTHING)
        for number, length in enumerate(lengths):
            if length == 0:
                continue
            blocks = attn_metadata.decode.block_table[number, : -(-length // size)].long()
            kept = kv_c_and_k_pe_cache[blocks].flatten(0, 1)[:length].float()
            scores = query[number].float() @ kept.T * self.scale
            lse[number] = torch.logsumexp(scores, dim=-1)
            out[number] = (torch.softmax(scores, dim=-1) @ kept[:, : self.kv_lora_rank]).to(out.dtype)
        return out, lse


class ContextParallelMLABackend(CPUMLABackend):
    """vLLM's CPU MLA backend with that implementation."""

    @staticmethod
    def get_impl_cls() -> type[ContextParallelMLAImpl]:
        """The implementation."""
        return ContextParallelMLAImpl


def install() -> None:
    """Put all of it where vLLM looks for it, in this process."""
    from vllm.triton_utils.dispatcher import KernelOverride
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.attention.ops import dcp
    from vllm.v1.worker.block_table import ComputeSlotMappingKernel

    # Not by register_kernels: looking for other holders of the kernel it stumbles over modules of numba's.
    ComputeSlotMappingKernel.kernel = KernelOverride(ComputeSlotMappingKernel.kernel, slot_mapping)
    register_backend(AttentionBackendEnum.CPU_MLA, f"{__name__}.{ContextParallelMLABackend.__name__}")
    dcp.correct_attn_out = correct_attn_out
    dcp._dcp_a2a_pack_send = pack_send
    dcp._dcp_a2a_unpack_combine = unpack_combine
    ops.cp_gather_cache = gather_local
