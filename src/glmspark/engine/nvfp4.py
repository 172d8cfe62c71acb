"""What a checkpoint says of its NVFP4 weights, and whether that can be true. No torch.

NVFP4: two e2m1 values a byte, an fp8 scale for 16 of them, a float32 scale for the matrix. W4A4 also rounds
the inputs, for which the checkpoint needs a scale that was measured when it was made.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmspark.engine.shards import ShardError, Stored

SAMPLE = 32
"""Pairs of matrices looked at before loading. Of the bad checkpoints known, two pairs in three differ."""

TOLERANCE = 1e-5
"""Relative; vLLM compares the same scales by as much."""

_SCALE = re.compile(r"^(.+\.)gate_proj\.(weight_scale_2|weight_global_scale)$")
_PAIR = re.compile(r"^(.+\.)(gate_proj|up_proj)\.(weight_scale_2|weight_global_scale)$")
_INPUT_SCALES = (".input_scale", ".input_global_scale")


@dataclass(frozen=True)
class Facts:
    """matrices: in NVFP4. with_input_scale: those that have one. differing: gate and up projections of one
    expert (or MLP) whose matrix scales differ, among those looked at; vLLM runs both by gate's."""

    matrices: int
    with_input_scale: int
    looked_at: int
    differing: tuple[str, ...]


def is_nvfp4(quantization: Mapping[str, Any] | None) -> bool:
    """Whether a config.json's `quantization_config` puts weights into NVFP4."""
    if not quantization:
        return False
    if str(quantization.get("quant_method", "")).startswith("modelopt"):
        return "NVFP4" in json.dumps(quantization)
    return any(_floats_of_4_bits(group.get("weights")) for group in _groups(quantization))


def rounds_inputs(quantization: Mapping[str, Any]) -> bool:
    """Whether it declares inputs of 4 bits, too (W4A4), as vLLM reads it."""
    if "W4A16" in str(quantization.get("quant_algo", "")):
        return False
    return any(_floats_of_4_bits(group.get("input_activations")) for group in _groups(quantization))


def weights_only(quantization: Mapping[str, Any]) -> dict[str, Any]:
    """The same declaration without inputs of 4 bits (W4A16). Only ModelOpt's has a word for that."""
    groups = {
        name: {key: value for key, value in group.items() if key != "input_activations"}
        for name, group in dict(quantization["config_groups"]).items()
    }
    return {**quantization, "quant_algo": "W4A16_NVFP4", "config_groups": groups}


def _groups(quantization: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = quantization.get("config_groups")
    return [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []


def _floats_of_4_bits(arguments: object) -> bool:
    return isinstance(arguments, dict) and arguments.get("num_bits") == 4 and arguments.get("type") == "float"


def look(stored: Mapping[str, Stored]) -> Facts:
    """The facts in a checkpoint's tensors, of which a few scales are read. Raises ShardError."""
    scales = [name for name in stored if name.endswith((".weight_scale_2", ".weight_global_scale"))]
    modules = {name.rpartition(".")[0] for name in scales}
    scaled = sum(1 for name in stored if name.endswith(_INPUT_SCALES) and name.rpartition(".")[0] in modules)
    pairs = [
        (name, up)
        for name in sorted(scales)
        if (match := _SCALE.match(name)) and (up := f"{match[1]}up_proj.{match[2]}") in stored
    ]
    chosen = pairs[:: max(1, len(pairs) // SAMPLE)][:SAMPLE]
    differing = tuple(
        gate.rpartition(".gate_proj.")[0]
        for gate, up in chosen
        if not alike(_value(stored[gate]), _value(stored[up]))
    )
    return Facts(len(modules), scaled, len(chosen), differing)


def pair_of(name: str) -> str | None:
    """One key for the matrix scales of a gate and its up projection; None for any other tensor."""
    found = _PAIR.match(name)
    return f"{found[1]}{found[3]}" if found else None


def alike(gate: float, up: float) -> bool:
    """Whether two matrix scales are one."""
    return abs(gate - up) <= TOLERANCE * max(abs(gate), abs(up))


def _value(stored: Stored) -> float:
    """A float32 scalar, read by itself and not kept in the page cache."""
    if stored.dtype != "F32" or stored.nbytes != 4:
        raise ShardError(f"{stored.file}: {stored.name} is {stored.dtype} {list(stored.shape)}, not one F32")
    descriptor = os.open(stored.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        raw = os.pread(descriptor, 4, stored.offset)
        os.posix_fadvise(descriptor, stored.offset, 4, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if len(raw) < 4:
        raise ShardError(f"{stored.file} ends before byte {stored.offset + 4}")
    return float(struct.unpack("<f", raw)[0])
