"""Sparse MLA decoding by our kernel under the name CUSTOM: with an LSE, so that DCP and DSA go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_weights import on_build
from glmspark.engine.patch import Finding, Patch, Target
from glmspark.engine.patches import dense_attention

if TYPE_CHECKING:
    from glmspark.engine.attention.self_test import Wanted

_COMMON = "vllm.model_executor.layers.attention.sparse_mla_attention"
_UTILS = "vllm.v1.attention.backends.mla.sparse_utils"
_SM120 = "vllm.v1.attention.backends.mla.flashinfer_mla_sparse"
_SM120_IMPL = "vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm120"
_REGISTRY = "vllm.v1.attention.backends.registry"

OURS = "glmspark.engine.attention.sparse_backend.SparseMLABackend"

_CONVERT = [
    "req_id", "block_table", "token_indices", "dcp_size", "dcp_rank", "cp_kv_cache_interleave_size",
    "BLOCK_SIZE", "BLOCK_STRIDE_ROWS", "NUM_TOPK_TOKENS", "BLOCK_N", "return_valid_counts",
    "compact_valid_to_front",
]  # fmt: skip
_METADATA = {"block_table", "req_id_per_token", "block_size", "cp_kv_cache_interleave_size"}


def needed(target: Target) -> str | None:
    """None where GLM keeps its sparse attention on CUDA."""
    if target.platform != "cuda":
        return f"{target.platform} has no sparse attention"
    if dense_attention.needed(target) is None:
        return "attention is dense here"
    return None


def precondition(code: Code) -> Finding:
    """Chosen keys become slots, and a sparse backend is made, as ours expects."""
    if "supports_dcp" in look.text(code.find(_SM120_IMPL, "FlashInferMLASparseSM120Impl")):
        return Finding.superseded(f"{_SM120_IMPL} returns an LSE for DCP itself")
    convert = look.parameters(code.find(_UTILS, "triton_filter_and_convert_dcp_index"))
    if convert != _CONVERT:
        return Finding.no(f"{_UTILS}.triton_filter_and_convert_dcp_index takes ({', '.join(convert)})")
    if look.parameters(code.find(_UTILS, "flat_kv_row_view")) != ["kv_cache", "block_size"]:
        return Finding.no(f"{_UTILS}.flat_kv_row_view takes something else")
    fields = look.fields(code.find(_COMMON, "SparseMLACommonMetadata"))
    if missing := sorted(_METADATA - set(fields)):
        return Finding.no(f"{_COMMON}.SparseMLACommonMetadata has no {', '.join(missing)}")
    builder = look.text(code.find(_SM120, "FlashInferMLASparseMetadataBuilder.__init__"))
    if "supports_dcp_with_varlen=True" not in builder:
        return Finding.no(f"{_SM120}.FlashInferMLASparseMetadataBuilder does not take several rows under DCP")
    if "class_path" not in look.parameters(code.find(_REGISTRY, "register_backend")):
        return Finding.no(f"{_REGISTRY}.register_backend takes no class_path")
    return Finding.yes(
        "a sparse backend may be given the name CUSTOM, and upstream makes slots of chosen keys"
    )


def wanted_of(vllm_config: Any) -> Wanted:
    """What this rank will decode."""
    from glmspark.engine.attention.layout import Format
    from glmspark.engine.attention.self_test import Wanted

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    packed = vllm_config.cache_config.cache_dtype == "fp8_ds_mla"
    return Wanted(
        kind=Format.PACKED if packed else Format.PLAIN,
        heads=model.get_num_attention_heads(parallel) * parallel.decode_context_parallel_size,
        rope=model.hf_text_config.qk_rope_head_dim,
        rows=1,
        page=1,  # the backend sees the cache as rows
        dtype=model.dtype,
    )


def on_worker(vllm_config: Any) -> None:
    """Where the recipe chose CUSTOM: test the kernel on this device, and give it the name.

    Raises PatchRefusedError where it is not right here: nothing else answers to that name.
    """
    from glmspark.engine.attention.custom import take_name
    from glmspark.engine.attention.self_test import verdict

    take_name(
        vllm_config,
        "sparse",
        OURS,
        lambda device: verdict(wanted_of(vllm_config), device, sparse=True),
        "leave out attention_backend: CUSTOM, and DCP with it",
    )


def apply() -> None:
    """Register the change."""
    on_build(on_worker)


PATCH = Patch(
    name="sparse-decode",
    title="Sparse MLA decoding with an LSE, as attention backend CUSTOM",
    upstream=(
        "on compute capability 12 the one sparse MLA backend, FLASHINFER_MLA_SPARSE_SM120, returns no LSE: "
        "decode context parallelism is refused with DSA."
    ),
    reason="a long context on Sparks needs sparse attention and a KV cache that is shared out",
    link="https://github.com/vllm-project/vllm/pull/47779",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
