"""NVFP4 experts: a checkpoint that can be true, a kernel that is known to be right, and a test that it is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glmspark.engine import code as look_at
from glmspark.engine import nvfp4
from glmspark.engine.code import Code
from glmspark.engine.model_config import missing_hook, on_glm_config
from glmspark.engine.model_weights import Weights, local_directory, on_loaded, on_weights
from glmspark.engine.patch import Finding, Patch, PatchRefusedError, Target
from glmspark.engine.shards import ShardError, Stored, read_shards

logger = logging.getLogger("vllm.glmspark.nvfp4_experts")

SAFE = "marlin"
"""The backend that is right on every device: it widens weights and rounds no inputs."""

_ORACLE = "vllm.model_executor.layers.fused_moe.oracle.nvfp4"
_LAYERS = "vllm.model_executor.layers.quantization"
_TENSORS = f"{_LAYERS}.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_w4a4_nvfp4"
_METHODS = (
    (f"{_LAYERS}.modelopt", "ModelOptNvFp4FusedMoE"),
    (_TENSORS, "CompressedTensorsW4A4Nvfp4MoEMethod"),
)
_APPLY = ["self", "layer", "x", "topk_weights", "topk_ids", "shared_experts", "shared_experts_input"]


def needed(target: Target) -> str | None:
    """None on CUDA: nothing else has kernels for NVFP4 experts."""
    return None if target.platform == "cuda" else f"{target.platform} has no kernels for NVFP4 experts"


def precondition(code: Code) -> Finding:
    """The backend is chosen by KernelConfig.moe_backend, and a method's kernel can be called by itself."""
    choice = look_at.text(code.find(_ORACLE, "select_nvfp4_moe_backend"))
    if "config.moe_backend" not in choice:
        return Finding.no(f"{_ORACLE}.select_nvfp4_moe_backend does not go by config.moe_backend any more")
    if f"'{SAFE}'" not in look_at.text(code.find(_ORACLE, "map_nvfp4_backend")):
        return Finding.no(f"{_ORACLE} has no backend {SAFE} any more")
    for module, name in _METHODS:
        if (seen := look_at.parameters(code.find(module, f"{name}.apply"))) != _APPLY:
            return Finding.no(f"{name}.apply takes ({', '.join(seen)}), not ({', '.join(_APPLY)})")
        code.find(module, f"{name}.process_weights_after_loading")
    if "moe_backend" not in look_at.fields(code.find("vllm.config.speculative", "SpeculativeConfig")):
        return Finding.no("SpeculativeConfig has no moe_backend: the draft cannot have another")
    if missing := missing_hook(code):
        return Finding.no(missing)
    return Finding.yes("the backend is chosen by moe_backend, and its kernel can be called by itself")


# --- before anything loads ----------------------------------------------------------------------------------


def check_checkpoint(vllm_config: Any) -> None:
    """Refuse or mend what cannot be true of an NVFP4 checkpoint."""
    config = vllm_config.model_config.hf_config
    declared: dict[str, Any] = getattr(config, "quantization_config", None) or {}
    if not nvfp4.is_nvfp4(declared):
        return
    directory = local_directory(vllm_config.model_config.model, vllm_config.model_config.revision)
    if directory is None:
        return
    _, facts = _read(directory)
    if facts.differing:
        raise PatchRefusedError(
            f"{directory}: {len(facts.differing)} of {facts.looked_at} pairs of gate and up projections have "
            f"matrix scales of their own, such as {facts.differing[0]}. vLLM runs both by gate's, so tokens "
            f"come out wrong.\n  next: take a checkpoint whose pairs share a scale, such as one made by "
            f"llm-compressor or published by NVIDIA"
        )
    if not nvfp4.rounds_inputs(declared):
        return
    if 0 < facts.with_input_scale < facts.matrices:
        raise PatchRefusedError(
            f"{directory}: inputs of 4 bits are declared, and {facts.matrices - facts.with_input_scale} of "
            f"{facts.matrices} matrices have no input scale\n  next: fetch the checkpoint again"
        )
    if facts.with_input_scale:
        return
    if not str(declared.get("quant_method", "")).startswith("modelopt"):
        raise PatchRefusedError(
            f"{directory}: inputs of 4 bits are declared, and no matrix has an input scale; kernels would "
            f"take what lies in memory\n  next: take input_activations out of its config.json"
        )
    config.quantization_config = nvfp4.weights_only(declared)
    logger.warning(
        "%s declares inputs of 4 bits (W4A4) and has no input scales; it runs as W4A16_NVFP4, which is what "
        "its weights are",
        directory,
    )


def _read(directory: Path) -> tuple[dict[str, Stored], nvfp4.Facts]:
    try:
        stored = read_shards(directory)
        return stored, nvfp4.look(stored)
    except (ShardError, OSError) as error:
        raise PatchRefusedError(str(error)) from None


def choose_backend(vllm_config: Any, capability: tuple[int, int] | None = None) -> None:
    """On compute capability 12, `auto` means Marlin, and the draft gets a backend of its own.

    capability: of the device; None asks the platform.
    """
    model = vllm_config.model_config
    if not nvfp4.is_nvfp4(getattr(model.hf_config, "quantization_config", None)):
        return
    if (capability or _capability())[0] != 12:
        return
    kernels = vllm_config.kernel_config
    if kernels.moe_backend == "auto":
        kernels.moe_backend = SAFE
        logger.info("NVFP4 experts on capability 12 run by %s; name another to have it tested", SAFE)
    speculation = vllm_config.speculative_config
    if speculation is None or speculation.moe_backend is not None:
        return
    drafter = getattr(speculation, "draft_model_config", None)
    if drafter is not None and not _draft_experts_are_nvfp4(drafter, model.hf_config.num_hidden_layers):
        # Left alone, the draft takes the target's, which knows nothing but NVFP4.
        speculation.moe_backend = "auto"


def _capability() -> tuple[int, int]:
    from vllm.platforms import current_platform

    found = current_platform.get_device_capability()
    return (found.major, found.minor) if found is not None else (0, 0)


def _draft_experts_are_nvfp4(drafter: Any, layers: int) -> bool:
    """Whether the draft's own layers (after the trunk's, where it is an MTP layer) have NVFP4 experts."""
    directory = local_directory(drafter.model, drafter.revision)
    if directory is None:
        return False
    stored, _ = _read(directory)
    for name in stored:
        parts = name.split(".")
        if ".experts." in name and name.endswith((".weight_scale_2", ".weight_global_scale")):
            number = parts[parts.index("layers") + 1] if "layers" in parts else "0"
            if number.isdigit() and int(number) >= layers:
                return True
    return False


# --- while and after loading --------------------------------------------------------------------------------


def watch(model: Any, weights: Weights) -> Iterator[tuple[str, Any]]:
    """Compare every pair of scales that comes by, and keep one expert for the test."""
    if not nvfp4.is_nvfp4(getattr(model.config, "quantization_config", None)) or model.drafts:
        yield from weights
        return
    from glmspark.engine.expert_test import OneExpert

    model.glmspark_expert = one = OneExpert()
    waiting: dict[str, float] = {}
    for name, tensor in one.watch(weights, lambda layer, expert: holds(model, layer, expert)):
        if (pair := nvfp4.pair_of(name)) is not None:
            value = float(tensor)
            if not nvfp4.alike(waiting.pop(pair, value), value):
                raise PatchRefusedError(
                    f"{name}: gate and up have matrix scales of their own; vLLM takes gate's"
                )
            waiting[pair] = value
        yield name, tensor


def holds(model: Any, layer: int, expert: int) -> bool:
    """Whether this rank's part of the model has that expert."""
    layers = model.model.layers
    if not model.model.start_layer <= layer < model.model.end_layer:
        return False
    found = [module for module in layers[layer].modules() if is_experts(module)]
    mapped = getattr(found[0], "expert_map", None) if found else None
    return bool(found) and (mapped is None or int(mapped[expert]) >= 0)


def is_experts(module: Any) -> bool:
    """Whether a module is vLLM's holder of NVFP4 experts, by what its method has."""
    return hasattr(getattr(module, "quant_method", None), "nvfp4_backend")


def arm(model: Any) -> None:
    """Have the layer of the expert that was kept tested as soon as it is in its kernel's format."""
    one = model.__dict__.pop("glmspark_expert", None)
    if one is None or one.layer is None:
        return
    layer = next(module for module in model.model.layers[one.layer].modules() if is_experts(module))
    method = layer.quant_method
    upstream = method.process_weights_after_loading

    def process_weights_after_loading(module: Any) -> None:
        upstream(module)
        if module is layer:
            del method.process_weights_after_loading
            prove(layer, method, one)

    method.process_weights_after_loading = process_weights_after_loading


def prove(layer: Any, method: Any, one: Any) -> None:
    """Raise unless the kernel computes what the checkpoint's expert is.

    Where the test itself cannot run, Marlin is trusted and any other backend on capability 12 is not.
    """
    from glmspark.engine.expert_test import ExpertTestError, run

    backend = str(method.nvfp4_backend.value).lower()
    where = f"NVFP4 experts by {backend}: expert {one.expert} of layer {one.layer}"
    try:
        verdict = run(layer, method, one)
    except Exception as error:  # a kernel fails in as many ways as there are
        if backend == SAFE or _capability()[0] != 12:
            logger.warning("%s could not be tested: %r", where, error)
            return
        raise ExpertTestError(
            f"{where} could not be tested ({error!r})\n  next: --moe-backend {SAFE}"
        ) from error
    if not verdict.passed:
        raise ExpertTestError(
            f"{where} is off by {verdict.error:.3g} of its output, {verdict.allowed} is allowed: this kernel "
            f"computes something else on this device\n  next: --moe-backend {SAFE}"
        )
    logger.info("%s is right to %.4f (%.2f allowed)", where, verdict.error, verdict.allowed)


def apply() -> None:
    """Register rules, step and test."""
    on_glm_config(check_checkpoint)
    on_glm_config(choose_backend)
    on_weights(watch)
    on_loaded(arm)


PATCH = Patch(
    name="nvfp4-experts",
    title="NVFP4 experts that compute what the checkpoint says",
    upstream=(
        "the backend is chosen by what claims to support the device, FLASHINFER_CUTLASS first on sm_121; "
        "input scales that a checkpoint lacks stay uninitialised, and gate and up projections with scales of "
        "their own are run by gate's, with a warning."
    ),
    reason="each of the three has served garbage from a healthy endpoint on Sparks",
    link="https://github.com/vllm-project/vllm/issues/54150",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
