"""NVFP4 weights: 4-bit floats in groups of 16, an fp8 scale a group and a float32 scale a matrix.

Two checkpoint formats carry the same numbers: compressed-tensors' `nvfp4-pack-quantized` (weights only), and
ModelOpt's, which people also publish with contradictions that a loader must notice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from pathlib import Path

import torch
from compressed_tensors.compressors import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from torch import Tensor

from tools.glm_tiny.variants.calibrate import Observation, observe
from tools.glm_tiny.variants.checkpoint import Checkpoint, read
from tools.glm_tiny.variants.layouts import (
    NVFP4_GROUP,
    Algorithm,
    Attention,
    in_nvfp4,
    modelopt_config,
    nvfp4_ignore,
)
from tools.glm_tiny.variants.names import Module, module_of

#: Largest absolute values of the two float formats: e2m1 (4 bits) and e4m3 (8 bits).
E2M1_MAX, E4M3_MAX = 6.0, 448.0

_SCHEME = preset_name_to_scheme("NVFP4A16", targets=["Linear"])


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
        # A tensor for each name, not one for all: a safetensors file holds no tensor twice.
        scales |= {name: generate_gparam(-amax, amax) for name in together}
    return scales


def quantize(weight: Tensor, global_scale: Tensor) -> dict[str, Tensor]:
    """compressed-tensors' tensors for one matrix: weight_packed, weight_scale and weight_global_scale."""
    grouped = weight.float().unflatten(-1, (-1, NVFP4_GROUP))
    scale, _ = calculate_qparams(
        grouped.amin(-1), grouped.amax(-1), _SCHEME.weights, global_scale=global_scale
    )
    state = {"weight": weight.float(), "weight_scale": scale, "weight_global_scale": global_scale}
    # The library rounds to 4 bits in a function under torch.compile, which would ask for a C++ compiler.
    with torch.compiler.set_stance("force_eager"):
        return NVFP4PackedCompressor.compress(state, _SCHEME)


def _quantized(source: Checkpoint, attention: Attention, *, shared: bool) -> dict[str, dict[str, Tensor]]:
    named = {name: module_of(name) for name in source.tensors if name.endswith(".weight")}
    modules = {name: m for name, m in named.items() if in_nvfp4(m, source.config, attention)}
    scales = global_scales(source.tensors, modules, shared=shared)
    return {modules[name].name: quantize(source.tensors[name], scales[name]) for name in modules}


def _left(source: Checkpoint, modules: Container[str]) -> dict[str, Tensor]:
    return {n: t for n, t in source.tensors.items() if n.removesuffix(".weight") not in modules}


def derive(source: Path, *, attention: Attention = "bf16") -> Checkpoint:
    """glm-tiny-nvfp4: compressed-tensors `nvfp4-pack-quantized`, weights only (W4A16)."""
    checkpoint = read(source)
    tensors = _left(checkpoint, modules := _quantized(checkpoint, attention, shared=True))
    for module, state in modules.items():
        tensors |= {f"{module}.{name}": tensor for name, tensor in state.items()}
    declared = QuantizationConfig(
        config_groups={"group_0": _SCHEME.model_copy(update={"format": "nvfp4-pack-quantized"})},
        ignore=nvfp4_ignore(checkpoint.config, attention),
        format="nvfp4-pack-quantized",
        quantization_status="compressed",
    )
    config = {**checkpoint.config, "quantization_config": json.loads(declared.model_dump_json())}
    return Checkpoint(config, dict(sorted(tensors.items())), checkpoint.files)


# --- ModelOpt ---------------------------------------------------------------------------------------------


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
    beside, inside = modelopt_config(checkpoint.config, attention, algorithm)
    files = {**checkpoint.files, "hf_quant_config.json": json.dumps(beside, indent=4) + "\n"}
    config = {**checkpoint.config, "quantization_config": inside}
    return Checkpoint(config, dict(sorted(tensors.items())), files)
