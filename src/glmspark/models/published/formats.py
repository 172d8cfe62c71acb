"""How a published checkpoint stores each class of weights."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.models.architecture import Kind, TensorSpec

__all__ = ["BITS", "FLOATS", "Formats", "bits_of"]

BITS: dict[str, float] = {
    "f32": 32,
    "bf16": 16,
    "fp8 128x128": 8 + 32 / 128**2,
    "int8 g128": 8 + 16 / 128,
    "int8 channel": 8,
    "int4 g128": 4 + 16 / 128,
    "awq int4 g128": 4 + 20 / 128,
    "nvfp4 g16": 4 + 8 / 16,
    "mxfp4 g32": 4 + 8 / 32,
    "mxfp8 g32": 8 + 8 / 32,
    "nvfp4 and nf3": 3.4,
}
"""Bits of a weight with its share of the scales (bf16 for the integer formats, fp8 of 16 for NVFP4)."""


def bits_of(form: str) -> float:
    """Bits of a weight in a format. EXL3's are in its name: exl3 2.75. KeyError for an unknown one."""
    return float(form.split()[1]) if form.startswith("exl3 ") else BITS[form]


FLOATS = frozenset({"f32", "bf16"})

_LINEARS: frozenset[Kind] = frozenset({"attention", "shared_experts", "dense_mlp", "linear_attention"})
_WIDE = ("A_log", "dt_bias", "conv1d.weight")


@dataclass(frozen=True)
class Formats:
    """By class; whatever is not named is bf16. routed: routed experts. linears: attention, shared experts and
    dense MLPs. mtp_routed, mtp_linears: of the MTP layer. kda: linear attention, where it differs from
    linears. float_layers: layers left in bf16."""

    routed: str
    linears: str = "bf16"
    mtp_routed: str = "bf16"
    mtp_linears: str = "bf16"
    kda: str | None = None
    float_layers: frozenset[int] = frozenset()

    def of(self, spec: TensorSpec) -> str:
        """The format of one weight: routers and recurrences add up in float32, norms and vectors are bf16."""
        if spec.kind in ("router", "hyper_connections") or spec.name.endswith(_WIDE):
            return "f32"
        layer = spec.layer
        if len(spec.shape) != 2 or (layer is not None and layer.index in self.float_layers):
            return "bf16"
        mtp = layer is not None and layer.mtp
        if spec.kind == "routed_experts":
            return self.mtp_routed if mtp else self.routed
        if spec.kind in _LINEARS:
            if mtp:
                return self.mtp_linears
            return self.kda or self.linears if spec.kind == "linear_attention" else self.linears
        return "bf16"
