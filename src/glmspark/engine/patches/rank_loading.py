"""Each pipeline rank reads only the files that hold its own layers."""

from __future__ import annotations

from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_weights import on_names
from glmspark.engine.patch import Finding, Patch, Target

_LOADER = "vllm.model_executor.model_loader.default_loader"
_FILES = "vllm.model_executor.model_loader.weight_utils"
_MODELS = "vllm.model_executor.models.utils"
_GENERIC = "vllm.model_executor.models.deepseek_v2"
HOOK = "is_unused_checkpoint_weight"


def needed(target: Target) -> str | None:
    """None where vLLM's GLM runs."""
    if target.platform in {"cpu", "cuda"}:
        return None
    return f"glmspark serves GLM on CPU and CUDA, not on {target.platform}"


def precondition(code: Code) -> Finding:
    """The loader asks the model by the hook's name, and the model's missing layers can be asked for."""
    if f"'{HOOK}'" not in look.text(code.find(_LOADER, "DefaultModelLoader.get_all_weights")):
        return Finding.no(f"{_LOADER} does not ask the model for {HOOK} any more")
    if "is_unused_weight" not in look.parameters(
        code.find(_FILES, "filter_safetensors_files_by_weight_name")
    ):
        return Finding.no(f"{_FILES}.filter_safetensors_files_by_weight_name does not take is_unused_weight")
    for function, wanted in (
        ("is_pp_missing_parameter", ["name", "model"]),
        ("get_spec_layer_idx_from_weight_name", ["config", "weight_name"]),
    ):
        if (seen := look.parameters(code.find(_MODELS, function))) != wanted:
            return Finding.no(f"{_MODELS}.{function} takes ({', '.join(seen)}), not ({', '.join(wanted)})")
    model = code.find(_GENERIC, "DeepseekV2ForCausalLM")
    if any(getattr(item, "name", "") == HOOK for item in getattr(model, "body", ())):
        return Finding.superseded(f"{_GENERIC}.DeepseekV2ForCausalLM has {HOOK} itself")
    return Finding.yes(f"the loader asks {HOOK}, which vLLM's GLM does not answer")


def not_on_this_rank(model: Any, name: str) -> bool:
    """Whether this rank's part of the model has no place for a tensor of that name.

    The split is the model's own (`make_layers`, and with it VLLM_PP_LAYER_PARTITION), over the layers of the
    trunk: an MTP layer that the index lists is none of them, and would move every later boundary.
    """
    from vllm.model_executor.models.utils import get_spec_layer_idx_from_weight_name, is_pp_missing_parameter

    in_mtp = get_spec_layer_idx_from_weight_name(model.config, name) is not None
    if model.drafts:  # the MTP layer on its own, with the embedding that it shares
        return not in_mtp and "embed_tokens" not in name
    return in_mtp or bool(is_pp_missing_parameter(name, model))


def apply() -> None:
    """Register the rule."""
    on_names(not_on_this_rank)


PATCH = Patch(
    name="rank-loading",
    title="A pipeline rank reads its own layers only",
    upstream=(
        f"the loader leaves out files for which the model's {HOOK} says that nothing in them is needed; "
        "vLLM's GLM has no such method, so loaders that read whole files read all of them on every rank."
    ),
    reason="three ranks would read 287 GB each from one disk or one NFS server, where 96 GB are needed",
    link="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/models/interfaces_base.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
