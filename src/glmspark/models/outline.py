"""What a plan must know of a checkpoint's weights: bytes by class and layer, and nothing of single
tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from glmspark.models.architecture import Architecture, Kind, Layer, TensorSpec
from glmspark.models.checkpoint import Checkpoint
from glmspark.models.families import known_architecture
from glmspark.models.published.checkpoints import Published
from glmspark.models.published.formats import FLOATS, bits_of
from glmspark.models.safetensors import DTYPE_BITS

__all__ = ["Outline", "Weights", "outline_of", "outline_published"]

_FLOAT_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
_MAIN_PARTS = (".weight", ".weight_packed", ".qweight", ".trellis")
"""The one part that each weight has, quantized or not; scales and zero points come beside it."""


@dataclass(frozen=True)
class Weights:
    """The weights of one class in one layer that are stored alike.

    layer: None for those outside the layers. tp: whether tensor parallelism splits them. experts: how many
    routed experts share the bytes, 1 for what is no expert. nbytes: as stored. elements: where they are
    floats, which the engine converts to its dtype, else 0. up: parameters of MLA's up-projection kv_b_proj
    among them, and up_bytes as stored: of a quantized one the engine keeps a second copy in its dtype (vLLM's
    MLAAttention holds W_UK_T and W_UV beside kv_b_proj, which are views of it where it is not quantized).
    """

    kind: Kind
    layer: Layer | None
    tp: bool
    experts: int
    format: str
    nbytes: int
    elements: int = 0
    up: int = 0
    up_bytes: int = 0

    @property
    def mtp(self) -> bool:
        """Whether they belong to the MTP layers."""
        return self.layer is not None and self.layer.mtp

    def loaded(self, element: int, *, twice: bool) -> int:
        """Bytes after loading, of all ranks together; quantized weights stay as stored.

        element: of the engine's dtype. twice: whether an up-projection in floats is held twice, too, which
        it is where linear layers keep their weights in a form of their own, as on the CPU; on GPUs both are
        one.
        """
        if self.elements:
            return (self.elements + self.up * twice) * element
        return self.nbytes + self.up * element

    def read(self, element: int) -> int:
        """Bytes that decoding reads: of the up-projection the engine's own copy, not the stored one."""
        stored = self.elements * element if self.elements else self.nbytes
        own = self.up * element if self.elements else self.up_bytes
        return stored - own + self.up * element


@dataclass(frozen=True)
class Outline:
    """A checkpoint's weights. exact: from its own headers, not from what is known of it by name."""

    name: str
    architecture: Architecture
    weights: tuple[Weights, ...] = field(repr=False)
    has_mtp: bool
    has_indexer: bool
    exact: bool

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all weights as stored."""
        return sum(one.nbytes for one in self.weights)

    @cached_property
    def by_layer(self) -> Mapping[int | None, tuple[Weights, ...]]:
        """By the layer's number, None for those outside the layers; MTP layers follow the trunk."""
        found: dict[int | None, list[Weights]] = {}
        for one in self.weights:
            found.setdefault(None if one.layer is None else one.layer.index, []).append(one)
        return {key: tuple(value) for key, value in found.items()}

    @property
    def expert_format(self) -> str:
        """How the routed experts are stored, e.g. "nvfp4 g16"; empty where there are none."""
        return next((one.format for one in self.weights if one.kind == "routed_experts" and not one.mtp), "")


class _Sum:
    """Adds up weights that are stored alike."""

    def __init__(self) -> None:
        self.found: dict[tuple[object, ...], Weights] = {}

    def add(self, spec: TensorSpec, name: str, nbytes: int, elements: int, up: tuple[int, int]) -> None:
        layer = spec.layer
        key = (spec.kind, None if layer is None else layer.index, spec.tp, spec.experts > 1, name)
        known = self.found.get(key)
        if known is None:
            known = Weights(spec.kind, layer, spec.tp, spec.experts, name, 0)
        self.found[key] = replace(
            known,
            nbytes=known.nbytes + nbytes,
            elements=known.elements + elements,
            up=known.up + up[0],
            up_bytes=known.up_bytes + up[1],
        )

    def weights(self) -> tuple[Weights, ...]:
        return tuple(self.found.values())


def outline_of(checkpoint: Checkpoint) -> Outline:
    """The outline of a checkpoint whose headers were read."""
    total = _Sum()
    for tensor in checkpoint.tensors:
        spec, info = tensor.spec, tensor.info
        if spec is None:
            continue
        floats = info.dtype in _FLOAT_TYPES
        main = spec.name.endswith(".kv_b_proj.weight") and tensor.name.endswith(_MAIN_PARTS)
        up = (prod(spec.shape), info.nbytes) if main else (0, 0)
        name = info.dtype.lower() if floats else _label(info.dtype)
        total.add(spec, name, info.nbytes, info.elements if floats else 0, up)
    return Outline(
        str(checkpoint.directory),
        checkpoint.architecture,
        total.weights(),
        checkpoint.has_mtp,
        checkpoint.has_indexer,
        exact=True,
    )


def _label(dtype: str) -> str:
    return f"{DTYPE_BITS[dtype]}-bit words" if dtype.startswith(("I", "U")) else dtype.lower()


def outline_published(name: str, known: Published) -> Outline:
    """The outline of a checkpoint known by name only.

    It is made once in a process: that takes a tenth of a second, and whoever compares layouts asks often.
    """
    made = _made.get(name)
    if made is None or made[0] is not known:
        architecture = known_architecture(known.config, name)
        weights = _published_weights(architecture.specs, known)
        has_mtp = known.mtp and bool(architecture.mtp_layers)
        outline = Outline(name, architecture, weights, has_mtp, known.indexer, exact=False)
        made = _made[name] = (known, outline)
    return made[1]


_made: dict[str, tuple[Published, Outline]] = {}


def _published_weights(specs: Iterable[TensorSpec], known: Published) -> tuple[Weights, ...]:
    total = _Sum()
    for spec in specs:
        if spec.layer is not None and spec.layer.mtp and not known.mtp:
            continue
        form = known.formats.of(spec)
        size = int(spec.parameters * bits_of(form) / 8)
        elements = spec.parameters if form in FLOATS else 0
        up = (spec.parameters, size) if spec.name.endswith(".kv_b_proj.weight") else (0, 0)
        total.add(spec, form, size, elements, up)
    return total.weights()
