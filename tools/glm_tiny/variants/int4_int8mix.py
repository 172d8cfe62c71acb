"""glm-tiny-int4-int8mix: compressed-tensors `pack-quantized` with the groups of GLM-5.2-Int4-Int8Mix.

int4 in groups for the routed experts, int8 in groups for attention, dense and shared MLPs, int8 with one
scale an output for the MTP layer; layer 0, routers, indexers, norms, embeddings and lm_head stay in bf16.
"""

from __future__ import annotations

from pathlib import Path

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor

from tools.glm_tiny.variants.checkpoint import Checkpoint, read
from tools.glm_tiny.variants.layouts import EXPERTS, LINEARS, MIX_IGNORE, MTP, mix_group, mix_targets
from tools.glm_tiny.variants.names import Module, group_size, module_of


def _weights(bits: int, group: int | None) -> QuantizationArgs:
    strategy = "group" if group else "channel"
    return QuantizationArgs(
        num_bits=bits, type="int", symmetric=True, strategy=strategy, group_size=group, dynamic=False
    )


def quantize(weight: Tensor, scheme: QuantizationScheme) -> dict[str, Tensor]:
    """compressed-tensors' tensors for one matrix: weight_packed, weight_scale and weight_shape.

    The scale is rounded to bf16, as which it is stored, before the weight is divided by it.
    """
    values = weight.float()
    size = scheme.weights.group_size or values.shape[-1]
    grouped = values.unflatten(-1, (-1, size))
    scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), scheme.weights)
    scale = scale.to(torch.bfloat16)
    state = {"weight": values, "weight_scale": scale.float(), "weight_zero_point": zero}
    packed = PackedQuantizationCompressor.compress(state, scheme)
    packed.pop("weight_zero_point", None)
    return {**packed, "weight_scale": scale}


def schemes(source: Checkpoint, tp: int) -> dict[str, QuantizationScheme]:
    """The scheme of each group, with the group sizes that the checkpoint's matrices allow on `tp` ranks."""
    inputs: dict[str, list[tuple[Module, int]]] = {EXPERTS: [], LINEARS: []}
    for name, tensor in source.tensors.items():
        module = module_of(name)
        if name.endswith(".weight") and (group := mix_group(module, source.config)) in inputs:
            inputs[group].append((module, tensor.shape[-1]))
    arguments = {
        EXPERTS: _weights(4, group_size(inputs[EXPERTS], tp)),
        LINEARS: _weights(8, group_size(inputs[LINEARS], tp)),
        MTP: _weights(8, None),
    }
    return {
        group: QuantizationScheme(targets=found, weights=arguments[group], format="pack-quantized")
        for group, found in mix_targets(source.config).items()
    }


def derive(source: Path, *, tp: int = 2) -> Checkpoint:
    """Quantize the checkpoint in `source`; its groups divide for up to `tp` ranks."""
    checkpoint = read(source)
    by_group = schemes(checkpoint, tp)
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        module = module_of(name)
        group = mix_group(module, checkpoint.config) if name.endswith(".weight") else None
        if group is None:
            tensors[name] = tensor
            continue
        for part, value in quantize(tensor, by_group[group]).items():
            tensors[f"{module.name}.{part}"] = value
    declared = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": list(MIX_IGNORE),
        "config_groups": {
            group: scheme.model_dump(mode="json", exclude={"weights": {"observer", "observer_kwargs"}})
            for group, scheme in by_group.items()
        },
    }
    config = {**checkpoint.config, "quantization_config": declared}
    return Checkpoint(config, dict(sorted(tensors.items())), checkpoint.files)
