"""How each matrix is stored: the scheme that its parts' names, types and shapes add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glmspark.models.architecture import TensorSpec
from glmspark.models.safetensors import TensorInfo

__all__ = ["PARTS", "Scheme", "scheme_of"]

PARTS = frozenset(
    {
        *("weight", "bias", "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2"),
        *("weight_global_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "weight_offset"),
        *("input_scale", "input_global_scale", "input_zero_point", "output_scale", "pre_quant_scale"),
        *("k_scale", "v_scale", "q_scale", "prob_scale", "bias_scale"),
        *("qweight", "qzeros", "scales", "g_idx"),  # AWQ, GPTQ
        *("trellis", "suh", "svh", "mcg", "mul1"),  # EXL3
        *("codebooks", "codes"),  # AQLM
    }
)
"""What quantized formats call the parts of a matrix. Anything else beside a matrix is unknown."""

_FLOATS = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f64"}


@dataclass(frozen=True)
class Scheme:
    """label: for people, e.g. "nvfp4 g16". quantized: whether it is. shape: of the matrix it stands for, None
    where only the format's own reader could tell. lacking: parts without which it cannot be read."""

    label: str
    quantized: bool
    shape: tuple[int, ...] | None = None
    lacking: tuple[str, ...] = ()


def scheme_of(parts: Mapping[str, TensorInfo], spec: TensorSpec) -> Scheme:
    """The scheme of one module's parts. spec: the matrix they should add up to."""
    weight = parts.get("weight")
    if "weight_packed" in parts:
        return _packed(parts, spec)
    if weight is not None and weight.dtype in _FLOATS:
        return Scheme(_FLOATS[weight.dtype], False, weight.shape)
    if weight is not None and weight.dtype == "U8" and len(weight.shape) == 2:
        return _four_bits(parts, weight, "weight_scale_2")
    if weight is not None and weight.dtype.startswith("F8"):
        return _eight_bits(parts, weight, "fp8")
    if weight is not None and weight.dtype == "I8":
        return _eight_bits(parts, weight, "int8")
    if "qweight" in parts:
        lacking = tuple(part for part in ("scales",) if part not in parts)
        return Scheme("awq/gptq " + _group(parts.get("scales"), spec, transposed=True), True, None, lacking)
    if "trellis" in parts:
        return Scheme("exl3", True)
    if "codes" in parts:
        return Scheme("aqlm", True)
    if weight is not None:
        return Scheme(weight.dtype.lower(), True, weight.shape)
    return Scheme("no weight", True, None, ("weight",))


def _packed(parts: Mapping[str, TensorInfo], spec: TensorSpec) -> Scheme:
    """compressed-tensors: int32 words of several weights, or bytes of two fp4."""
    packed, scale = parts["weight_packed"], parts.get("weight_scale")
    if packed.dtype == "U8" and len(packed.shape) == 2:
        return _four_bits(parts, packed, "weight_global_scale")
    lacking = tuple(part for part in ("weight_scale", "weight_shape") if part not in parts)
    inputs = spec.shape[-1] if spec.shape else 0
    words = packed.shape[-1] if packed.shape else 0
    # The number of bits is the config's to say; it follows from the width that the matrix must have.
    bits = next((bits for bits in (2, 3, 4, 8) if words * 32 // bits == inputs), None)
    rows = packed.shape[:1]
    if bits is None:
        return Scheme(f"packed {packed.dtype.lower()}", True, (*rows, words * 8), lacking)
    return Scheme(f"int{bits} {_group(scale, spec)}", True, (*rows, inputs), lacking)


def _four_bits(parts: Mapping[str, TensorInfo], packed: TensorInfo, second: str) -> Scheme:
    rows, inputs = packed.shape[0], packed.shape[1] * 2
    scale = parts.get("weight_scale")
    width = inputs // scale.shape[1] if scale and len(scale.shape) == 2 and scale.shape[1] else 0
    mx = scale is not None and (scale.dtype in ("U8", "F8_E8M0") or width == 32)
    wanted = ("weight_scale",) if mx else ("weight_scale", second)
    lacking = tuple(part for part in wanted if part not in parts)
    return Scheme(f"{'mxfp4' if mx else 'nvfp4'} g{width}", True, (rows, inputs), lacking)


def _eight_bits(parts: Mapping[str, TensorInfo], weight: TensorInfo, name: str) -> Scheme:
    scale = parts.get("weight_scale_inv") or parts.get("weight_scale")
    if scale is None:
        return Scheme(name, True, weight.shape, ("weight_scale",))
    if scale.elements == 1:
        how = "tensor"
    elif len(scale.shape) == 2 and len(weight.shape) == 2 and 0 not in scale.shape:
        rows, columns = -(-weight.shape[0] // scale.shape[0]), -(-weight.shape[1] // scale.shape[1])
        how = "channel" if scale.shape[1] == 1 else f"{rows}x{columns}" if rows > 1 else f"g{columns}"
    else:
        how = "channel"
    return Scheme(f"{name} {how}", True, weight.shape)


def _group(scale: TensorInfo | None, spec: TensorSpec, *, transposed: bool = False) -> str:
    if scale is None or len(scale.shape) != 2 or 0 in scale.shape or not spec.shape:
        return "channel"
    groups = scale.shape[0] if transposed else scale.shape[1]
    return "channel" if groups == 1 else f"g{spec.shape[-1] // groups}"
