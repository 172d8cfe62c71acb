"""Checkpoints of real size made of headers and holes: real names, types and shapes, no weights.

A 400 GB checkpoint takes some 100 MB of disk. The few per-matrix scales of NVFP4 are written, because
`glmspark inspect` reads them. `python -m tools.headers glm-5.2-int4-int8mix --to DIR` makes one by hand.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from glmspark.models.architecture import TensorSpec
from glmspark.models.families import known_architecture
from glmspark.models.published import FLASH, GLM_5_2, GLM_5_2_REAP
from glmspark.models.safetensors import DTYPE_BITS
from tools.glm_tiny.variants.layouts import EXPERTS, LINEARS, MIX_IGNORE, MTP, mix_group, mix_targets
from tools.glm_tiny.variants.names import module_of

Tensor = tuple[str, tuple[int, ...]]
Parts = Mapping[str, Tensor]
SHARD_BYTES = 5_000_000_000
GLOBAL_SCALE = struct.pack("<f", 1 / 3000)


def bf16(spec: TensorSpec) -> Parts:
    """As released: bf16, and what routers and recurrences add up in float32."""
    wide = spec.kind in ("router", "hyper_connections") or spec.name.endswith(
        ("A_log", "dt_bias", "conv1d.weight")
    )
    return {spec.name.rpartition(".")[2]: ("F32" if wide else "BF16", spec.shape)}


def _int(spec: TensorSpec, bits: int, group: int | None) -> Parts:
    rows, inputs = spec.shape
    return {
        "weight_packed": ("I32", (rows, inputs * bits // 32)),
        "weight_scale": ("BF16", (rows, inputs // group if group else 1)),
        "weight_shape": ("I64", (2,)),
    }


def _nvfp4(spec: TensorSpec) -> Parts:
    rows, inputs = spec.shape
    return {
        "weight": ("U8", (rows, inputs // 2)),
        "weight_scale": ("F8_E4M3", (rows, inputs // 16)),
        "weight_scale_2": ("F32", ()),
    }


def int4_int8mix(spec: TensorSpec) -> Parts:
    """QuantTrio's: int4 experts, int8 linears, int8 MTP."""
    if not spec.name.endswith(".weight"):
        return bf16(spec)
    group = mix_group(module_of(spec.name.replace("{expert}", "0")), GLM_5_2)
    match group:
        case None:
            return bf16(spec)
        case "w4a16_experts":
            return _int(spec, 4, 128)
        case "w8a16_linears":
            return _int(spec, 8, 128)
        case _:
            return _int(spec, 8, None)


def experts_nvfp4(spec: TensorSpec) -> Parts:
    """ModelOpt NVFP4 for routed experts, bf16 for the rest."""
    return _nvfp4(spec) if spec.kind == "routed_experts" else bf16(spec)


def _mix_config() -> dict[str, Any]:
    weights = {
        EXPERTS: {"num_bits": 4, "group_size": 128, "strategy": "group", "type": "int"},
        LINEARS: {"num_bits": 8, "group_size": 128, "strategy": "group", "type": "int"},
        MTP: {"num_bits": 8, "strategy": "channel", "type": "int"},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": list(MIX_IGNORE),
        "config_groups": {
            group: {"targets": targets, "weights": weights[group], "input_activations": None}
            for group, targets in mix_targets(GLM_5_2).items()
        },
    }


def _modelopt(*patterns: str) -> dict[str, Any]:
    ignore = [
        "lm_head",
        "*embed_tokens*",
        "*self_attn*",
        "*shared_experts*",
        "*mlp.gate",
        "*eh_proj*",
        *patterns,
    ]
    return {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ignore}


_DENSE = tuple(f"*layers.{layer}.mlp.{part}_proj" for layer in range(3) for part in ("gate", "up", "down"))

CHECKPOINTS: dict[str, tuple[dict[str, Any], Callable[[TensorSpec], Parts], bool]] = {
    "glm-5.2-bf16": (GLM_5_2, bf16, True),
    "glm-5.2-int4-int8mix": ({**GLM_5_2, "quantization_config": _mix_config()}, int4_int8mix, True),
    "glm-5.3-flash-nvfp4": (
        {**FLASH, "quantization_config": _modelopt("*visual*", *_DENSE)},
        experts_nvfp4,
        True,
    ),
    "glm-5.2-reap-469b-nvfp4": (
        {**GLM_5_2_REAP, "quantization_config": _modelopt(*_DENSE)},
        experts_nvfp4,
        False,
    ),
    # 30 GB of the same, for trying out what moves weights.
    "glm-5.2-reap-7-layers": (
        {
            **GLM_5_2_REAP,
            "num_hidden_layers": 7,
            "index_topk_pattern": "F" * 7,
            "first_k_dense_replace": 0,
            "num_nextn_predict_layers": 0,
            "quantization_config": _modelopt(),
        },
        experts_nvfp4,
        False,
    ),
}
"""By name: config.json, how each weight is stored, whether the MTP layer is there."""


def tensors(name: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a checkpoint, layer by layer."""
    config, stored, mtp = CHECKPOINTS[name]
    for spec in known_architecture(config, "config.json").specs:
        if spec.layer is not None and spec.layer.mtp and not mtp:
            continue
        parts = stored(spec)
        for expert in range(spec.experts):
            module = spec.name.replace("{expert}", str(expert)).rpartition(".")[0]
            for part, tensor in parts.items():
                yield f"{module}.{part}", tensor


def write(name: str, target: Path, *, shard_bytes: int = SHARD_BYTES) -> Path:
    """Write the checkpoint as the folder `target`, which must not be there yet: shards of `shard_bytes`."""
    target.mkdir(parents=True)
    config = CHECKPOINTS[name][0]
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for tensor, (dtype, shape) in tensors(name):
        if filled > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][tensor] = (dtype, shape)
        filled += _size(dtype, shape)
    weight_map: dict[str, str] = {}
    total = 0
    for number, contents in enumerate(shards, 1):
        shard = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(target / shard, contents)
        weight_map |= dict.fromkeys(contents, shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    own = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
    added = [{"id": 154820 + n, "content": token} for n, token in enumerate(own)]
    (target / "tokenizer.json").write_text(
        json.dumps({"added_tokens": added, "model": {"type": "BPE", "vocab": {}}})
    )
    (target / "chat_template.jinja").write_text(
        "[gMASK]<sop>{% for m in messages %}<|user|><|assistant|>{% endfor %}"
    )
    return target


def write_shard(path: Path, contents: Mapping[str, Tensor]) -> int:
    """One file: scalars first, as safetensors' own writer has it, then the rest; returns the data's bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    scales: list[tuple[int, int]] = []  # where and how many beside one another
    position = end = 0
    for name, (dtype, shape) in sorted(contents.items(), key=lambda item: (-DTYPE_BITS[item[1][0]], item[0])):
        size = _size(dtype, shape)
        if name.endswith((".weight_scale_2", ".weight_global_scale")):
            first, count = scales.pop() if scales and position == end else (position, 0)
            scales.append((first, count + 1))
            end = position + size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for place, count in scales:
            file.seek(8 + len(raw) + place)
            file.write(GLOBAL_SCALE * count)
        file.truncate(8 + len(raw) + position)
    return position


@functools.cache
def _size(dtype: str, shape: tuple[int, ...]) -> int:
    size = DTYPE_BITS[dtype] // 8
    for dimension in shape:
        size *= dimension
    return size
