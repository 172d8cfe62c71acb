"""A checkpoint directory: its config, its index and the headers of its shards; never its weights."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from glmspark.config.paths import expand
from glmspark.models.architecture import Architecture, TensorSpec
from glmspark.models.errors import CheckpointError
from glmspark.models.families import read_architecture
from glmspark.models.safetensors import TensorInfo, read_header

__all__ = ["Checkpoint", "Stored", "check_tokenizer", "inspect_checkpoint"]

INDEX = "model.safetensors.index.json"
_MAX_CONFIG = 16 * 2**20
_MAX_INDEX = 128 * 2**20
_MAX_TOKENIZER = 256 * 2**20
_EXPERT = re.compile(r"^(.+\.mlp\.experts)\.(\d{1,6})\.(.+)$", re.ASCII)
_PACKED = re.compile(r"\.mlp\.experts\.(gate_up_proj|down_proj)(_|(?=$|\.))")
_PACKED_AS = {"gate_up_proj": "gate_proj", "down_proj": "down_proj"}
"""Experts of a layer stored as one tensor, as transformers holds them in memory."""


@dataclass(frozen=True)
class Stored:
    """A tensor of the checkpoint: where it lies, and which weight of the architecture it belongs to.

    spec is None for what the architecture does not list, e.g. an MTP layer's copy of the embedding.
    """

    name: str
    shard: str
    info: TensorInfo
    spec: TensorSpec | None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has every weight its architecture needs. Sizes in bytes."""

    directory: Path
    architecture: Architecture
    shards: tuple[str, ...]
    tensors: tuple[Stored, ...] = field(repr=False)
    has_mtp: bool
    has_indexer: bool

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.info.nbytes for tensor in self.tensors)

    @cached_property
    def parameters(self) -> int:
        """Stored elements: the parameter count of an unquantized checkpoint."""
        return sum(tensor.info.elements for tensor in self.tensors)

    def layer_tensors(self, layer: int) -> Iterable[Stored]:
        """The tensors of one layer, counted from 0; MTP layers follow the trunk."""
        return self._by_layer.get(layer, ())

    @cached_property
    def _by_layer(self) -> Mapping[int, tuple[Stored, ...]]:
        found: dict[int, list[Stored]] = defaultdict(list)
        for tensor in self.tensors:
            if tensor.spec is not None and tensor.spec.layer is not None:
                found[tensor.spec.layer.index].append(tensor)
        return {layer: tuple(tensors) for layer, tensors in found.items()}


def inspect_checkpoint(directory: str | os.PathLike[str]) -> Checkpoint:
    """Read what a checkpoint directory holds and check that it is whole.

    Raises CheckpointError, naming file and reason, for a missing directory or config.json, an architecture
    that is not served, an index that names a missing file or one outside the directory, a shard that is
    empty, truncated or malformed, a dangling link, and weights that are missing.
    """
    root = expand(directory)
    if not _is_dir(root):
        state = "is not a directory" if os.path.lexists(root) else "does not exist"
        raise CheckpointError(
            f"the model directory {root} {state}",
            step="find the model",
            next="check model.source in the recipe",
        )
    config = _read_json(root / "config.json", _MAX_CONFIG)
    architecture = read_architecture(config, str(root / "config.json"))
    placed, shards = _placed(root)
    names = _Names(architecture)
    tensors = tuple(
        Stored(name, shard, info, names.spec(name)) for name, (shard, info) in sorted(placed.items())
    )
    has_mtp, has_indexer = _check_complete(root, architecture, tensors)
    return Checkpoint(root, architecture, shards, tensors, has_mtp, has_indexer)


def check_tokenizer(directory: str | os.PathLike[str]) -> None:
    """Raises CheckpointError unless tokenizer.json, GLM's one tokenizer file, is there and whole.

    A model without it is noticed by vLLM only once it has been imported, in words of transformers.
    """
    path = expand(directory) / "tokenizer.json"
    found = _read_json(path, _MAX_TOKENIZER)
    if not isinstance(found.get("model"), dict) or not isinstance(found.get("added_tokens"), list):
        raise CheckpointError(
            f"{path} is no tokenizer",
            step="read tokenizer.json",
            seen=f"model and added_tokens are needed, its keys are {', '.join(list(found)[:8])[:200]}",
            next="fetch tokenizer.json again",
        )


def _placed(root: Path) -> tuple[dict[str, tuple[str, TensorInfo]], tuple[str, ...]]:
    """Every tensor with its shard, from the index if there is one, else from all *.safetensors."""
    index = _read_index(root)
    if index is None:
        shards = tuple(sorted(path.name for path in root.glob("*.safetensors")))
        if not shards:
            raise CheckpointError(
                f"{root} holds no *.safetensors file",
                step="find the weights",
                seen=", ".join(sorted(path.name for path in root.iterdir())[:20]) or "an empty directory",
                next="fetch the model's weights; other formats are not read",
            )
    else:
        shards = tuple(sorted(set(index.values())))
    headers = {shard: read_header(root / shard) for shard in shards}
    placed: dict[str, tuple[str, TensorInfo]] = {}
    for shard, header in headers.items():
        for name, info in header.items():
            if index is not None and index.get(name) != shard:
                continue
            if name in placed:
                raise CheckpointError(
                    f"tensor {name[:200]!r} is both in {placed[name][0]} and in {shard}",
                    step="read the weights' headers",
                    next=f"fetch {INDEX} too: it says which one counts",
                )
            placed[name] = (shard, info)
    lost = [name for name in index or () if name not in placed]
    if index is not None and lost:
        name = min(lost)
        raise CheckpointError(
            f"{root / INDEX} says that {index[name]} holds {name[:200]!r}, which it does not",
            step="read the index",
            seen=f"{len(lost)} of {len(index)} tensors are not where the index says",
            next="fetch the index and its shards again, from one revision",
        )
    return placed, shards


def _read_index(root: Path) -> dict[str, str] | None:
    path = root / INDEX
    if not os.path.lexists(path):
        return None
    weight_map = _read_json(path, _MAX_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map", step="read the index", next="fetch it again")
    for shard in set(map(str, weight_map.values())):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}\.safetensors", shard):
            raise CheckpointError(
                f"{path} names the shard {shard[:200]!r}, which is not a plain file name of this directory",
                step="read the index",
                next="fetch the index again; do not use it if it came so",
            )
        if not os.path.lexists(root / shard):
            raise CheckpointError(
                f"{path} names the shard {shard}, which does not exist",
                step="read the index",
                next=f"fetch {shard}",
            )
    return {str(name): str(shard) for name, shard in weight_map.items()}


def _read_json(path: Path, limit: int) -> dict[str, Any]:
    def broken(reason: str) -> CheckpointError:
        return CheckpointError(f"{path} {reason}", step=f"read {path.name}", next=f"fetch {path.name} again")

    try:
        if not path.is_file():
            if path.is_symlink():
                raise broken(f"is a link to {path.readlink()}, which does not exist")
            raise broken("does not exist" if not path.exists() else "is not a regular file")
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise broken(f"cannot be read: {error.strerror or error}") from None
    if len(raw) > limit:
        raise broken(f"is larger than {limit // 2**20} MiB")
    if not raw.strip():
        raise broken("is empty")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise broken(f"is not JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise broken("is not a JSON object")
    return value


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _unpacked(match: re.Match[str]) -> str:
    return f".mlp.experts.{{expert}}.{_PACKED_AS[match[1]]}" + ("." if match[2] else "")


class _Names:
    """From a tensor's name to the weight it belongs to, whatever a quantized format calls its parts."""

    def __init__(self, architecture: Architecture) -> None:
        self.exact = {spec.name: spec for spec in architecture.specs}
        self.modules = {spec.module: spec for spec in architecture.specs if spec.name.endswith(".weight")}

    def spec(self, name: str) -> TensorSpec | None:
        generic = _EXPERT.sub(r"\1.{expert}.\3", name)
        generic = _PACKED.sub(_unpacked, generic)
        if generic in self.exact:
            return self.exact[generic]
        module = generic
        while module:
            if module in self.modules:
                return self.modules[module]
            module = module.rpartition(".")[0]
        return None


def _check_complete(root: Path, architecture: Architecture, tensors: tuple[Stored, ...]) -> tuple[bool, bool]:
    """Raises CheckpointError unless every weight of the trunk is there; says whether MTP and indexers are.

    Pruned and dense checkpoints leave out MTP layers or indexers. Half an MTP layer is a fault; indexers on
    some layers only is a known state of published checkpoints, which serve densely and not sparsely.
    """
    present = {tensor.spec.name for tensor in tensors if tensor.spec is not None}
    packed = any(_PACKED.search(tensor.name) for tensor in tensors)
    indexers: list[str] = []
    mtp: list[str] = []
    trunk: list[str] = []
    for spec in architecture.specs:
        in_mtp = spec.layer is not None and spec.layer.mtp
        if packed and spec.kind == "routed_experts" and ".up_proj" in spec.name:
            continue  # it is the second half of gate_up_proj
        if spec.kind == "indexer":
            if not in_mtp:
                indexers.append(spec.name)
        else:
            (mtp if in_mtp else trunk).append(spec.name)
    missing = [name for name in trunk if name not in present]
    if any(name in present for name in mtp):
        missing += [name for name in mtp if name not in present]
    if missing:
        raise _mismatch(
            f"{root} lacks weights that config.json calls for: {missing[0]}",
            f"{len(missing)} weights are missing",
        )
    _check_experts(root, architecture, tensors)
    _check_shapes(root, architecture, tensors)
    return bool(mtp) and present.issuperset(mtp), bool(indexers) and present.issuperset(indexers)


def _check_experts(root: Path, architecture: Architecture, tensors: tuple[Stored, ...]) -> None:
    """Every MoE layer has as many experts as config.json says, whatever their numbers are."""
    numbers: dict[tuple[int, str], set[str]] = defaultdict(set)
    counts: dict[tuple[int, str], int] = {}
    for tensor in tensors:
        spec = tensor.spec
        if spec is None or spec.layer is None or spec.kind != "routed_experts":
            continue
        if match := _EXPERT.match(tensor.name):
            numbers[spec.layer.index, spec.name].add(match[2])
        elif _PACKED.search(tensor.name) and tensor.info.shape:
            counts[spec.layer.index, spec.name] = tensor.info.shape[0]
    counts.update({place: len(found) for place, found in numbers.items()})
    for (layer, name), count in sorted(counts.items()):
        if count != architecture.experts:
            said = architecture.experts
            raise _mismatch(f"{root}: layer {layer} has {count} experts, config.json says {said}", name)


def _check_shapes(root: Path, architecture: Architecture, tensors: tuple[Stored, ...]) -> None:
    """Unquantized weights have the shapes that config.json implies.

    Not the router's: a checkpoint whose experts were pruned may keep the rows of all, see `_check_experts`.
    """
    if architecture.quantization is not None:
        return
    for tensor in tensors:
        spec, shape = tensor.spec, tensor.info.shape
        if spec is None or spec.kind == "router" or _PACKED.search(tensor.name):
            continue
        if shape != spec.shape and _EXPERT.sub(r"\1.{expert}.\3", tensor.name) == spec.name:
            raise _mismatch(
                f"{root}: {tensor.name} has shape {list(shape)}, config.json implies {list(spec.shape)}",
                tensor.shard,
            )


def _mismatch(message: str, seen: str) -> CheckpointError:
    return CheckpointError(
        message,
        step="check the weights",
        seen=seen,
        next="fetch the missing shards, or the config.json that belongs to these weights",
    )
