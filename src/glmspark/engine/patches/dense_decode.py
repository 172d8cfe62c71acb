"""Dense MLA decoding by our kernel: several rows a request under DCP, and scratch that does not grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_weights import on_build
from glmspark.engine.patch import Finding, Patch, Target
from glmspark.engine.patches import dense_attention

if TYPE_CHECKING:
    from glmspark.engine.attention.self_test import Wanted

_BACKEND = "vllm.v1.attention.backends.mla.triton_mla"
_COMMON = "vllm.model_executor.layers.attention.mla_attention"
_REGISTRY = "vllm.v1.attention.backends.registry"

OURS = "glmspark.engine.attention.backend.DenseMLABackend"

_DECODE_FIELDS = ["block_table", "seq_lens", "dcp_tot_seq_lens"]
_FORWARD = ["self", "q", "kv_c_and_k_pe_cache", "attn_metadata", "layer"]
_BUILD = ["self", "kv_cache_spec", "layer_names", "vllm_config", "device"]


def needed(target: Target) -> str | None:
    """None where GLM runs densely on CUDA."""
    if target.platform != "cuda":
        return f"{target.platform} decodes by another kernel"
    if reason := dense_attention.needed(target):
        return f"attention is not dense here: {reason}"
    return None


def precondition(code: Code) -> Finding:
    """TRITON_MLA refuses several rows under DCP, and is made of the classes ours are made of."""
    forward = code.find(_BACKEND, "TritonMLAImpl.forward_mqa")
    if "causal multi-token decode is not supported with DCP" not in look.text(forward):
        return Finding.superseded(f"{_BACKEND} does not refuse several rows a request under DCP any more")
    if (seen := look.parameters(forward)) != _FORWARD:
        return Finding.no(f"{_BACKEND}.TritonMLAImpl.forward_mqa takes ({', '.join(seen)})")
    fields = look.fields(code.find(_COMMON, "MLACommonDecodeMetadata"))
    if fields != _DECODE_FIELDS:
        return Finding.no(f"{_COMMON}.MLACommonDecodeMetadata holds {', '.join(fields)}")
    builder = code.find(_COMMON, "MLACommonMetadataBuilder.__init__")
    if (seen := look.parameters(builder))[:5] != _BUILD or "supports_dcp_with_varlen" not in seen:
        return Finding.no(f"{_COMMON}.MLACommonMetadataBuilder takes ({', '.join(seen)})")
    own = code.find(_BACKEND, "TritonMLAMetadataBuilder.__init__")
    if look.assigns_attribute(own, "supports_draft_decode_metadata_update") != ["self.dcp_world_size == 1"]:
        return Finding.no(f"{_BACKEND}.TritonMLAMetadataBuilder prepares something else")
    lengths = look.text(code.find(_COMMON, "MLACommonMetadataBuilder.build"))
    if "dcp_tot_seq_lens_device = seq_lens[:num_decodes]" not in lengths:
        return Finding.no(f"{_COMMON} does not hand on the lengths of all ranks under DCP")
    if "class_path" not in look.parameters(code.find(_REGISTRY, "register_backend")):
        return Finding.no(f"{_REGISTRY}.register_backend takes no class_path")
    return Finding.yes(
        "TRITON_MLA refuses several rows a request under DCP; another class may take the name CUSTOM"
    )


def wanted_of(vllm_config: Any) -> Wanted:
    """What this rank will decode."""
    from glmspark.engine.attention.layout import Format
    from glmspark.engine.attention.self_test import Wanted

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    drafts = vllm_config.speculative_config
    dcp = parallel.decode_context_parallel_size
    return Wanted(
        kind=Format.FP8 if str(vllm_config.cache_config.cache_dtype).startswith("fp8") else Format.PLAIN,
        heads=model.get_num_attention_heads(parallel) * dcp,
        rope=model.hf_text_config.qk_rope_head_dim,
        rows=1 + (drafts.num_speculative_tokens or 0 if drafts else 0),
        page=vllm_config.cache_config.block_size or 64,
        dtype=model.dtype,
        world=dcp,
    )


def on_worker(vllm_config: Any) -> None:
    """Where the recipe chose CUSTOM: test the kernel on this device, and give it the name.

    Called in the process that builds the model. Raises PatchRefusedError where the kernel is not right here:
    not upstream's instead, since ranks that decode in different ways would wait for one another for ever.
    """
    from glmspark.engine.attention.custom import take_name
    from glmspark.engine.attention.self_test import verdict

    take_name(
        vllm_config,
        "dense",
        OURS,
        lambda device: verdict(wanted_of(vllm_config), device),
        "leave out attention_backend: CUSTOM",
    )


def apply() -> None:
    """Register the change."""
    on_build(on_worker)


PATCH = Patch(
    name="dense-decode",
    title="Dense MLA decoding of several rows a request, under DCP too, as attention backend CUSTOM",
    upstream=(
        "TRITON_MLA, the only dense MLA backend that knows DCP on GB10, decodes one row a request under it: "
        "verification of drafts goes through the prefill, which gathers the whole context, and DSpark is "
        "refused. Its scratch grows with context x rows: gigabytes at a million tokens."
    ),
    reason="a long context on Sparks needs the KV cache shared out and drafts verified at the same time",
    link="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/attention/backends/mla/triton_mla.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
