"""The checkpoint's tensors, sorted into the matrices of its architecture."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from glmspark.models.architecture import Architecture, TensorSpec
from glmspark.models.inspection.schemes import PARTS, Scheme, scheme_of
from glmspark.models.safetensors import TensorInfo

__all__ = ["Matrices", "Matrix", "sort_tensors"]

_EXPERT = re.compile(r"^(.+\.mlp\.experts)\.(\d{1,6})\.(.+)$", re.ASCII)
_PACKED = re.compile(
    r"^(.+\.mlp\.experts)\.(gate_up_proj|down_proj)(?:_(scale|scale_inv|bias))?(?:\.weight)?$"
)
_BESIDE_MTP = re.compile(r"\.(embed_tokens|shared_head\.head)\.[a-z_0-9]+$")
_BESIDE = re.compile(r"(\.rotary_emb\.inv_freq|_scale|\.kv_scale)$")


@dataclass(frozen=True)
class Matrix:
    """One weight as stored. module: its name there. expert: its number, or None. nbytes: of all its parts."""

    module: str
    spec: TensorSpec
    expert: int | None
    scheme: Scheme
    parts: Mapping[str, TensorInfo] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(info.nbytes for info in self.parts.values())


@dataclass
class Matrices:
    """stored: every matrix found, by module. unused: known tensors that the engine leaves out, by why.
    unknown: what the architecture does not have. whole_experts: layers' experts in one tensor each."""

    architecture: Architecture
    stored: dict[str, Matrix] = field(default_factory=dict)
    unused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unknown: list[str] = field(default_factory=list)
    numbers: dict[tuple[int, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    whole_experts: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes by tensor of what is in `unused` and `unknown`."""

    def each(self, kind: str) -> Iterator[Matrix]:
        """All matrices of one class, MTP's among them."""
        return (matrix for matrix in self.stored.values() if matrix.spec.kind == kind)


def sort_tensors(architecture: Architecture, tensors: Mapping[str, tuple[str, TensorInfo]]) -> Matrices:
    """Every tensor to its matrix."""
    found = Matrices(architecture)
    exact = {spec.name: spec for spec in architecture.specs}
    modules = {spec.module: spec for spec in architecture.specs if spec.name.endswith(".weight")}
    shared = {layer.index for layer in architecture.layers if layer.indexer != "full"}
    groups: dict[str, tuple[TensorSpec, int | None, dict[str, TensorInfo]]] = {}
    for name, (_, info) in tensors.items():
        module, _, part = name.rpartition(".")
        expert = None
        generic = module
        if match := _EXPERT.match(module):
            expert, generic = int(match[2]), f"{match[1]}.{{expert}}.{match[3]}"
        spec = modules.get(generic)
        if spec is not None and part in PARTS and (spec.experts > 1) == (expert is not None):
            own = exact.get(f"{generic}.{part}")
            if own is not None and own is not spec:  # a bias that the architecture lists itself
                groups[name] = (own, None, {"weight": info})
                continue
            group = groups.get(module)
            if group is None:
                group = groups[module] = (spec, expert, {})
            group[2][part] = info
            if expert is not None and part in ("weight", "weight_packed", "qweight", "trellis", "codes"):
                layer = spec.layer.index if spec.layer else -1
                found.numbers[layer, spec.name].add(expert)
        elif name in exact:
            groups[name] = (exact[name], None, {"weight": info})
        else:
            _other(found, name, info, shared, groups, modules)
    cache: dict[tuple[object, ...], Scheme] = {}
    for module, (spec, expert, parts) in groups.items():
        signature = (spec.shape, *((part, info.dtype, info.shape) for part, info in sorted(parts.items())))
        scheme = cache.get(signature)
        if scheme is None:
            scheme = cache[signature] = scheme_of(parts, spec)
        found.stored[module] = Matrix(module, spec, expert, scheme, parts)
    return found


def _other(
    found: Matrices,
    name: str,
    info: TensorInfo,
    shared: set[int],
    groups: dict[str, tuple[TensorSpec, int | None, dict[str, TensorInfo]]],
    modules: Mapping[str, TensorSpec],
) -> None:
    layer = re.search(r"\blayers\.(\d{1,6})\.", name)
    mtp = {one.index for one in found.architecture.mtp_layers}
    number = int(layer[1]) if layer else -1
    if match := _PACKED.match(name):
        # A layer's experts in one tensor, as transformers holds them: it stands for all of them.
        halves = ("gate_proj", "up_proj") if match[2] == "gate_up_proj" else ("down_proj",)
        specs = [modules.get(f"{match[1]}.{{expert}}.{half}") for half in halves]
        if specs[0] is not None and match[3] is None:
            found.whole_experts.update(spec.name for spec in specs if spec is not None)
            groups[name] = (specs[0], None, {"weight": info})
            return
    found.sizes[name] = info.nbytes
    if ".self_attn.indexer." in name and number in shared:
        found.unused["indexers of layers that share another's choice"].append(name)
    elif number in mtp and _BESIDE_MTP.search(name):
        found.unused["the MTP layer's copies of embedding and head"].append(name)
    elif _BESIDE.search(name):
        found.unused["scales and tables that are computed anew"].append(name)
    else:
        found.unknown.append(name)
