"""NVFP4 weights: 4-bit floats in groups of 16, an fp8 scale a group and a float32 scale a matrix.

Two checkpoint formats carry the same numbers: compressed-tensors' `nvfp4-pack-quantized` (weights only), and
ModelOpt's, which people also publish with contradictions that a loader must notice.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import torch
from compressed_tensors.compressors import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from torch import Tensor

from tools.glm_tiny.variants.calibrate import Observation, observe
from tools.glm_tiny.variants.checkpoint import Checkpoint, read
from tools.glm_tiny.variants.names import Module, Role, main_layers, module_of, mtp_layers

GROUP = 16
#: Largest absolute values of the two float formats: e2m1 (4 bits) and e4m3 (8 bits).
E2M1_MAX, E4M3_MAX = 6.0, 448.0
#: The release of ModelOpt whose files these are like, in the words it puts into them.
PRODUCER = {"name": "modelopt", "version": "0.47.0"}

Attention = Literal["bf16", "nvfp4"]
Algorithm = Literal["NVFP4", "W4A16_NVFP4"]

_SCHEME = preset_name_to_scheme("NVFP4A16", targets=["Linear"])


def chosen(config: dict[str, Any], tensors: dict[str, Tensor], attention: Attention) -> dict[str, Module]:
    """Tensors to quantize and their modules: the MLPs of the model's own layers and, if asked for, attention.

    What the published checkpoints leave in bf16 stays so: router, indexer, norms, embeddings, lm_head, MTP.
    """
    roles = {Role.EXPERT, Role.SHARED, Role.DENSE} | ({Role.ATTENTION} if attention == "nvfp4" else set())
    modules = {name: module_of(name) for name in tensors if name.endswith(".weight")}
    own = main_layers(config)
    return {name: m for name, m in modules.items() if m.role in roles and m.layer in own}


def global_scales(
    tensors: dict[str, Tensor], modules: dict[str, Module], *, shared: bool = True
) -> dict[str, Tensor]:
    """The global scale of each chosen tensor, [1] float32: 448 * 6 / its largest absolute value.

    vLLM runs joined matrices (gate and up; the two q/kv down-projections) with one global scale, so they
    share one, the smaller; `shared=False` gives each its own, as the field's bad checkpoints do.
    """
    parts: dict[str, list[str]] = {}
    for name, module in modules.items():
        parts.setdefault(module.fusion if shared else module.name, []).append(name)
    scales = {}
    for together in parts.values():
        amax = torch.stack([tensors[name].float().abs().amax() for name in together]).amax().reshape(1)
        scales |= {
            name: generate_gparam(-amax, amax) for name in together
        }  # a tensor each: files hold no ties
    return scales


def quantize(weight: Tensor, global_scale: Tensor) -> dict[str, Tensor]:
    """compressed-tensors' tensors for one matrix: weight_packed, weight_scale and weight_global_scale."""
    grouped = weight.float().unflatten(-1, (-1, GROUP))
    scale, _ = calculate_qparams(
        grouped.amin(-1), grouped.amax(-1), _SCHEME.weights, global_scale=global_scale
    )
    state = {"weight": weight.float(), "weight_scale": scale, "weight_global_scale": global_scale}
    return NVFP4PackedCompressor.compress(state, _SCHEME)


def _quantized(source: Checkpoint, attention: Attention, *, shared: bool) -> dict[str, dict[str, Tensor]]:
    modules = chosen(source.config, source.tensors, attention)
    scales = global_scales(source.tensors, modules, shared=shared)
    return {modules[name].name: quantize(source.tensors[name], scales[name]) for name in modules}


def _left(source: Checkpoint, modules: dict[str, Any]) -> dict[str, Tensor]:
    return {n: t for n, t in source.tensors.items() if n.removesuffix(".weight") not in modules}


def ignored(config: dict[str, Any], attention: Attention) -> list[str]:
    """What compressed-tensors' config leaves alone, as regular expressions on module names."""
    patterns = ["lm_head", "model.embed_tokens", r"re:.*\.mlp\.gate$", r"re:.*\.self_attn\.indexer\..*"]
    if attention == "bf16":
        patterns.append(r"re:.*\.self_attn\..*")
    return patterns + [rf"re:model\.layers\.{layer}\..*" for layer in mtp_layers(config)]


def derive(source: Path, *, attention: Attention = "bf16") -> Checkpoint:
    """glm-tiny-nvfp4: compressed-tensors `nvfp4-pack-quantized`, weights only (W4A16)."""
    checkpoint = read(source)
    tensors = _left(checkpoint, modules := _quantized(checkpoint, attention, shared=True))
    for module, state in modules.items():
        tensors |= {f"{module}.{name}": tensor for name, tensor in state.items()}
    declared = QuantizationConfig(
        config_groups={"group_0": preset_name_to_scheme("NVFP4A16", targets=["Linear"])},
        ignore=ignored(checkpoint.config, attention),
        format="nvfp4-pack-quantized",
        quantization_status="compressed",
    )
    config = {**checkpoint.config, "quantization_config": json.loads(declared.model_dump_json())}
    return Checkpoint(config, dict(sorted(tensors.items())), checkpoint.files)


# --- ModelOpt ---------------------------------------------------------------------------------------------


def excluded(config: dict[str, Any], attention: Attention) -> list[str]:
    """What ModelOpt's config leaves alone: its wildcards on module names."""
    patterns = ["lm_head", "model.embed_tokens"]
    for layer in main_layers(config):
        whole = "self_attn*" if attention == "bf16" else "self_attn.indexer*"
        patterns.append(f"model.layers.{layer}.{whole}")
        if layer >= config["first_k_dense_replace"]:
            patterns.append(f"model.layers.{layer}.mlp.gate")
    return patterns + [f"model.layers.{layer}*" for layer in mtp_layers(config)]


def declare(config: dict[str, Any], attention: Attention, algorithm: Algorithm) -> tuple[dict, dict]:
    """What ModelOpt writes into hf_quant_config.json, and into config.json as `quantization_config`."""
    left = excluded(config, attention)
    four_bits = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": GROUP}
    group = {"weights": four_bits, "targets": ["Linear"]}
    if algorithm == "NVFP4":
        group["input_activations"] = four_bits
    in_config = {
        "config_groups": {"group_0": group},
        "ignore": left,
        "quant_algo": algorithm,
        "producer": PRODUCER,
        "quant_method": "modelopt",
    }
    details = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": None,
        "group_size": GROUP,
        "exclude_modules": left,
    }
    return {"producer": PRODUCER, "quantization": details}, in_config


def input_scales(modules: list[str], seen: Observation) -> dict[str, Tensor]:
    """ModelOpt's static activation scale of each module: largest input seen / (6 * 448), float32.

    Gate and up have the same input. An expert that the calibration text never reached gets the largest of its
    kind in its layer, as ModelOpt's export does.
    """
    of_kind: dict[str, float] = {}
    for module, amax in seen.input_amax.items():
        kind = re.sub(r"\.experts\.\d+\.", ".experts.*.", module)
        of_kind[kind] = max(of_kind.get(kind, 0.0), amax)
    scales = {}
    for module in modules:
        amax = seen.input_amax.get(module) or of_kind[re.sub(r"\.experts\.\d+\.", ".experts.*.", module)]
        scales[module] = torch.tensor(amax / (E2M1_MAX * E4M3_MAX), dtype=torch.float32)
    return scales


def derive_modelopt(
    source: Path,
    *,
    attention: Attention = "bf16",
    algorithm: Algorithm = "NVFP4",
    input_scale: bool = True,
    shared_scale: bool = True,
) -> Checkpoint:
    """glm-tiny-nvfp4-modelopt: the same weights in ModelOpt's format.

    `algorithm` "NVFP4" declares 4-bit activations too (W4A4), with calibrated input scales;
    `input_scale=False` leaves those out and `shared_scale=False` gives gate and up scales of their own: two
    faults of published checkpoints.
    """
    checkpoint = read(source)
    tensors = _left(checkpoint, modules := _quantized(checkpoint, attention, shared=shared_scale))
    for module, state in modules.items():
        tensors[f"{module}.weight"] = state["weight_packed"]
        tensors[f"{module}.weight_scale"] = state["weight_scale"]
        tensors[f"{module}.weight_scale_2"] = (1.0 / state["weight_global_scale"]).reshape(())
    if algorithm == "NVFP4" and input_scale:
        scales = input_scales(list(modules), observe(source))
        tensors |= {f"{module}.input_scale": scale for module, scale in scales.items()}
    beside, inside = declare(checkpoint.config, attention, algorithm)
    files = {**checkpoint.files, "hf_quant_config.json": json.dumps(beside, indent=4) + "\n"}
    config = {**checkpoint.config, "quantization_config": inside}
    return Checkpoint(config, dict(sorted(tensors.items())), files)
