"""glm-tiny-int4-int8mix: compressed-tensors `pack-quantized` with the groups of GLM-5.2-Int4-Int8Mix.

int4 in groups for the routed experts, int8 in groups for attention, dense and shared MLPs, int8 with one
scale an output for the MTP layer; layer 0, routers, indexers, norms, embeddings and lm_head stay in bf16.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor

from tools.glm_tiny.variants.checkpoint import Checkpoint, read
from tools.glm_tiny.variants.names import (
    MLA_PROJECTIONS,
    Module,
    Role,
    group_size,
    main_layers,
    module_of,
    mtp_layers,
)

#: Group names of the published checkpoints.
EXPERTS, LINEARS, MTP = "w4a16_experts", "w8a16_linears", "w8a16_mtp_channel"
_LINEAR_ROLES = frozenset({Role.ATTENTION, Role.DENSE, Role.SHARED})


def group_of(module: Module, config: dict[str, Any]) -> str | None:
    """The group that quantizes a module, or None if it stays in bf16."""
    if module.layer in mtp_layers(config):
        return MTP if module.role in _LINEAR_ROLES | {Role.EXPERT} else None
    if module.layer in main_layers(config) and module.layer > 0:
        if module.role is Role.EXPERT:
            return EXPERTS
        return LINEARS if module.role in _LINEAR_ROLES else None
    return None


def _weights(bits: int, group: int | None) -> QuantizationArgs:
    strategy = "group" if group else "channel"
    return QuantizationArgs(
        num_bits=bits, type="int", symmetric=True, strategy=strategy, group_size=group, dynamic=False
    )


def _alternatives(numbers: list[int]) -> str:
    return "(?:" + "|".join(str(n) for n in sorted(numbers, reverse=True)) + ")"


def targets(config: dict[str, Any]) -> dict[str, list[str]]:
    """Regular expressions on module names for each group: the checkpoint's names and vLLM's joined ones."""
    attention = "self_attn[.](?:" + "|".join(("fused_qkv_a_proj", *MLA_PROJECTIONS)) + ")"
    projection = "(?:gate_up_proj|gate_proj|up_proj|down_proj)"
    expert = f"mlp[.]experts[.][0-9]+[.]{projection}"
    mlp = f"mlp[.](?:shared_experts[.])?{projection}"
    quantized = _alternatives([n for n in main_layers(config) if n > 0])
    found = {
        EXPERTS: [f"re:model[.]layers[.]{quantized}[.]{expert}$"],
        LINEARS: [f"re:model[.]layers[.]{quantized}[.](?:{attention}|{mlp})$"],
    }
    if mtp := list(mtp_layers(config)):
        inner = f"(?:{attention}|{mlp}|{expert})"
        found[MTP] = [f"re:model[.]layers[.]{_alternatives(mtp)}[.](?:mtp_block[.])?{inner}$"]
    return found


IGNORE = (
    "re:model[.]layers[.]0[.].*",
    "re:.*[.]mlp[.]gate$",
    "re:.*[.]self_attn[.]indexer[.].*",
    "re:.*[.](?:eh_proj|shared_head[.]head|embed_tokens)$",
    "lm_head",
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
        if name.endswith(".weight") and (group := group_of(module, source.config)) in inputs:
            inputs[group].append((module, tensor.shape[-1]))
    arguments = {
        EXPERTS: _weights(4, group_size(inputs[EXPERTS], tp)),
        LINEARS: _weights(8, group_size(inputs[LINEARS], tp)),
        MTP: _weights(8, None),
    }
    return {
        group: QuantizationScheme(targets=found, weights=arguments[group], format="pack-quantized")
        for group, found in targets(source.config).items()
    }


def derive(source: Path, *, tp: int = 2) -> Checkpoint:
    """Quantize the checkpoint in `source`; its groups divide for up to `tp` ranks."""
    checkpoint = read(source)
    by_group = schemes(checkpoint, tp)
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        module = module_of(name)
        group = group_of(module, checkpoint.config) if name.endswith(".weight") else None
        if group is None:
            tensors[name] = tensor
            continue
        for part, value in quantize(tensor, by_group[group]).items():
            tensors[f"{module.name}.{part}"] = value
    declared = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": list(IGNORE),
        "config_groups": {
            group: scheme.model_dump(mode="json", exclude={"weights": {"observer", "observer_kwargs"}})
            for group, scheme in by_group.items()
        },
    }
    config = {**checkpoint.config, "quantization_config": declared}
    return Checkpoint(config, dict(sorted(tensors.items())), checkpoint.files)
