"""Decode context parallelism (DCP) for MLA on the CPU."""

from __future__ import annotations

import ast
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_config import missing_hook, on_glm_config
from glmspark.engine.model_weights import on_build
from glmspark.engine.patch import Finding, Patch, Target

_BACKEND = "vllm.v1.attention.backends.mla.cpu_mla"
_DCP = "vllm.v1.attention.ops.dcp"
_TABLE = "vllm.v1.worker.block_table"
_KERNELS = "vllm.utils.cpu_triton_utils"

# What is put in another's place takes the same arguments.
_SIGNATURES = {
    (_DCP, "correct_attn_out"): ["out", "lses", "cp_rank", "ctx", "is_lse_base_on_e"],
    (_DCP, "_dcp_a2a_pack_send"): [
        "cp_attn_out",
        "cp_attn_lse",
        "send_buffer",
        "world_size",
        "h_per_rank",
        "head_dim",
        "lse_pack_dim",
        "seq_lens",
        "query_start_loc",
    ],
    (_DCP, "_dcp_a2a_unpack_combine"): [
        "recv_buffer",
        "head_dim",
        "lse_pack_dim",
        "return_lse",
        "is_lse_base_on_e",
    ],
    (_DCP, "_lse_weighted_combine"): ["outputs", "lses", "return_lse", "is_lse_base_on_e"],
    (_DCP, "mask_dcp_empty_shards_"): ["lse", "seq_lens", "query_start_loc"],
    (_BACKEND, "CPUMLAImpl.forward_mqa"): ["self", "q", "kv_c_and_k_pe_cache", "attn_metadata", "layer"],
    ("vllm.triton_utils.dispatcher", "KernelOverride.__init__"): ["self", "kernel", "impl"],
    ("vllm._custom_ops", "cp_gather_cache"): [
        "src_cache",
        "dst",
        "block_table",
        "cu_seq_lens",
        "batch_size",
        "seq_starts",
    ],
}


def needed(target: Target) -> str | None:
    """None on the CPU."""
    return None if target.platform == "cpu" else f"{target.platform} has kernels for DCP"


def precondition(code: Code) -> Finding:
    """The CPU backend returns no LSE and maps no slots with DCP; what stands in for both fits in."""
    implementation = code.find(_BACKEND, "CPUMLAImpl")
    if "can_return_lse_for_decode: bool = False" not in ast.unparse(implementation):
        return Finding.superseded(f"{_BACKEND}.CPUMLAImpl returns the LSE")
    slots = ast.unparse(code.find(_KERNELS, "_compute_slot_mapping_kernel_impl"))
    if "TOTAL_CP_WORLD_SIZE == 1" not in slots:
        return Finding.no(f"{_KERNELS} does not refuse DCP any more, but CPUMLAImpl still returns no LSE")
    for (module, name), wanted in _SIGNATURES.items():
        if (seen := look.parameters(code.find(module, name))) != wanted:
            return Finding.no(f"{module}.{name} takes ({', '.join(seen)})")
    kernel = ["num_tokens", "max_num_tokens", "query_start_loc_ptr", "positions_ptr", "block_table_ptr"]
    if look.parameters(code.find(_TABLE, "ComputeSlotMappingKernel.kernel"))[:5] != kernel:
        return Finding.no(f"{_TABLE}.ComputeSlotMappingKernel.kernel takes other arguments")
    functions = ("_cp_lse_common", "dcp_a2a_lse_reduce")
    combine = "".join(ast.unparse(code.find(_DCP, name)) for name in functions)
    for called in ("correct_attn_out(", "_dcp_a2a_pack_send(", "_dcp_a2a_unpack_combine("):
        if called not in combine:
            return Finding.no(f"{_DCP} does not combine by {called[:-1]} any more")
    code.find("vllm._custom_ops", "gather_mla_context_cache_cpu")
    if missing := missing_hook(code):
        return Finding.no(missing)
    return Finding.yes("the CPU's MLA backend returns no LSE, and its slots are those of one rank")


def choose_backend(vllm_config: Any) -> None:
    """With DCP the reference backend: the one for AMX has no LSE either."""
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        vllm_config.attention_config.backend = AttentionBackendEnum.CPU_MLA


def install(vllm_config: Any) -> None:
    """In a worker with DCP: put our code where vLLM looks for it."""
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        from glmspark.engine import cpu_context_parallel

        cpu_context_parallel.install()


def apply() -> None:
    """Register both."""
    on_glm_config(choose_backend)
    on_build(install)


PATCH = Patch(
    name="cpu-dcp",
    title="Decode context parallelism for MLA on the CPU",
    upstream=(
        "the CPU's MLA backend returns no log-sum-exp, so DCP is refused; its slot mapping asserts one rank, "
        "and the combination of the ranks' results exists as Triton kernels only."
    ),
    reason="the recipes with DCP must run without a GPU, for people who try them and for the tests",
    link="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/attention/backends/mla/cpu_mla.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
