"""GLM with dense attention where the platform has no sparse attention, or where the recipe asks for it."""

from __future__ import annotations

from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_config import ARCHITECTURE, missing_hook, on_glm_config
from glmspark.engine.model_weights import MTP_ARCHITECTURE, choose_classes
from glmspark.engine.patch import DENSE_VARIABLE, Finding, Patch, PatchRefusedError, Target, dense_requested

# Compute capabilities (major) for which vLLM's CUDA platform lists a sparse MLA backend:
# vllm/platforms/cuda.py, _get_backend_priorities.
SPARSE_CUDA_MAJORS = frozenset({9, 10, 12})

_GENERIC = "vllm.model_executor.models.deepseek_v2"
_MTP = "vllm.model_executor.models.deepseek_mtp"

# What decides between dense and DSA, and must still ask `hasattr(config, "index_topk")`.
_DECIDES = (
    (_GENERIC, "DeepseekV2Model.__init__"),
    (_GENERIC, "DeepseekV2MLAAttention.__init__"),
    (_MTP, "DeepSeekMultiTokenPredictorLayer.__init__"),
)


def needed(target: Target) -> str | None:
    """None on the CPU, on CUDA devices without a sparse backend, and wherever the recipe asks for dense."""
    if target.platform == "cpu":
        return None
    if target.platform != "cuda":
        return f"glmspark serves GLM on CPU and CUDA, not on {target.platform}"
    if target.dense:
        return None
    if target.capability is None:
        return "no CUDA device is visible"
    if target.capability[0] in SPARSE_CUDA_MAJORS:
        capability = ".".join(map(str, target.capability))
        return f"compute capability {capability} has sparse attention: DSA is left alone"
    return None


def precondition(code: Code) -> Finding:
    """The generic class is there and hiding `index_topk` still makes it dense."""
    for module, name, base in (
        (_GENERIC, ARCHITECTURE, "DeepseekV2ForCausalLM"),
        (_MTP, "DeepSeekMTP", "nn.Module"),
    ):
        node = code.find(module, name)
        if base not in look.bases(node):
            return Finding.no(f"{module}.{name} is no {base} any more but {', '.join(look.bases(node))}")
    for module, name in (
        (_GENERIC, "DeepseekV2ForCausalLM.load_weights"),
        (_MTP, "DeepSeekMTP.load_weights"),
    ):
        if (seen := look.parameters(code.find(module, name))) != ["self", "weights"]:
            return Finding.no(f"{module}.{name} takes ({', '.join(seen)}), not (self, weights)")
    for module, name in _DECIDES:
        if not look.tests_attribute(code.find(module, name), "index_topk"):
            return Finding.no(f'{module}.{name} does not ask hasattr(config, "index_topk") any more')
    if missing := missing_hook(code):
        return Finding.no(missing)
    if not look.raises_if(code.find("vllm.platforms.cpu", "CpuPlatform.get_attn_backend_cls"), "use_sparse"):
        return Finding.superseded("vLLM's CPU platform does not refuse sparse attention any more")
    return Finding.yes('the generic class decides by hasattr(config, "index_topk")')


def refuse_long_context(vllm_config: Any) -> None:
    """Beyond `index_topk` tokens DSA and dense attention are different models: allowed only where asked for.

    Raises `PatchRefusedError` with both numbers and both ways out.
    """
    config = vllm_config.model_config
    limit = getattr(config.hf_config, "index_topk", None)
    if limit is None or config.max_model_len <= limit or dense_requested():
        return
    raise PatchRefusedError(
        f"max_model_len {config.max_model_len} is above index_topk {limit}, and this platform has no sparse "
        f"attention. Up to {limit} tokens dense attention is exactly the model's DSA; beyond, it is another "
        f"model than the one that was trained.\n"
        f"  next: --max-model-len {limit}, or dense_attention: true in the recipe ({DENSE_VARIABLE}=1) where "
        f"that other model is what you want."
    )


def apply() -> None:
    """Register the dense classes and the context rule. Imports no model code."""
    choose_classes(
        {
            ARCHITECTURE: "glmspark.engine.dense_glm:DenseGlm",
            MTP_ARCHITECTURE: "glmspark.engine.dense_glm:DenseGlmMTP",
        }
    )
    on_glm_config(refuse_long_context)


PATCH = Patch(
    name="dense-attention",
    title="GLM without DSA where there is no sparse attention",
    upstream=(
        "GlmMoeDsaForCausalLM always builds the DSA indexer and a sparse attention layer; the CPU platform "
        "raises NotImplementedError for sparse attention, and on CUDA the registry resolves to a class that "
        "knows DSA only."
    ),
    reason=(
        "the CPU, and any layout that needs an attention backend without sparse support (DCP on GB10, the "
        "REAP recipe), can run GLM only with dense attention"
    ),
    link="https://github.com/vllm-project/vllm/issues/54018",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
