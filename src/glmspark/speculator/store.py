"""A drafter's weights: the target's two matrices read, the drafter's own read and written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from glmspark.config.files import make_dir, write_atomic
from glmspark.speculator.drafter import Drafter, Shared
from glmspark.speculator.shape import DrafterError, read_shape

__all__ = ["WEIGHTS", "digest", "read_drafter", "read_shared", "write_drafter"]

WEIGHTS = "model.safetensors"


def read_shared(target: Path) -> Shared:
    """Embedding and output matrix of a target's checkpoint, in float32 on the CPU.

    Raises DrafterError where they are missing or quantised: a drafter that shares them computes with them.
    """
    index = target / "model.safetensors.index.json"
    try:
        names = json.loads(index.read_bytes())["weight_map"] if index.is_file() else {}
        found = []
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            with safe_open(target / names.get(name, WEIGHTS), framework="pt") as file:
                found.append(file.get_tensor(name))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DrafterError(
            f"{target} has no embedding and output matrix that a drafter could share",
            step="read the target's model.embed_tokens.weight and lm_head.weight",
            seen=f"{type(error).__name__}: {str(error)[:200]}",
            next="name the directory of the target's checkpoint",
        ) from error
    for name, tensor in zip(("embedding", "output matrix"), found, strict=True):
        if not tensor.is_floating_point() or tensor.dim() != 2:
            raise DrafterError(f"the {name} of {target} is quantised; a drafter cannot share it")
    return Shared(found[0].float(), found[1].float())


def digest(directory: Path) -> str:
    """A name for a checkpoint's contents: SHA-256 over names and bytes of its config and weights' files."""
    total = hashlib.sha256()
    for path in sorted([directory / "config.json", *directory.glob("*.safetensors")]):
        total.update(path.name.encode() + b"\0")
        try:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DrafterError(f"cannot read {path}: {error.strerror}", step="hash the checkpoint") from error
    return total.hexdigest()


def write_drafter(drafter: Drafter, directory: Path, target: str, provenance: dict[str, Any]) -> None:
    """config.json, model.safetensors (bfloat16; the confidence head in float32) and provenance.json.

    The directory is made where it is missing. The configuration comes last: without one there is no drafter.
    """
    make_dir(directory, mode=0o755)
    tensors = {
        name: value.detach()
        .to("cpu", torch.float32 if name.startswith("confidence_head") else torch.bfloat16)
        .contiguous()
        for name, value in drafter.state_dict().items()
    }
    write_atomic(directory / WEIGHTS, to_bytes(tensors, metadata={"format": "pt"}))
    text = json.dumps(provenance, indent=2, sort_keys=True, allow_nan=False)
    write_atomic(directory / "provenance.json", text.encode() + b"\n")
    write_atomic(
        directory / "config.json", json.dumps(drafter.shape.config(target), indent=2).encode() + b"\n"
    )


def read_drafter(directory: Path) -> Drafter:
    """The drafter in a directory, in float32 on the CPU. Raises DrafterError where it is not whole."""
    shape = read_shape(directory)
    drafter = Drafter(shape)
    found = _tensors(directory)
    wanted = drafter.state_dict()
    # A copy of the target's own matrices, and tables of a reduced vocabulary, are not the drafter's.
    extra = sorted(set(found) - set(wanted) - {"embed_tokens.weight", "lm_head.weight", "t2d", "d2t"})
    missing = sorted(set(wanted) - set(found))
    odd = [name for name in wanted if name in found and found[name].shape != wanted[name].shape]
    if extra or missing or odd:
        raise DrafterError(
            f"the weights in {directory} are not those that its config.json describes",
            step="read the drafter",
            seen="; ".join(
                f"{what} {', '.join(names[:4])}"
                for what, names in (("missing", missing), ("not known", extra), ("of another shape", odd))
                if names
            ),
        )
    drafter.load_state_dict({name: found[name].float() for name in wanted})
    return drafter


def _tensors(directory: Path) -> dict[str, torch.Tensor]:
    files = sorted(directory.glob("*.safetensors"))
    found: dict[str, torch.Tensor] = {}
    try:
        for path in files:
            with safe_open(path, framework="pt") as file:
                found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise DrafterError(f"cannot read the weights in {directory}", seen=str(error)[:200]) from error
    if not files:
        raise DrafterError(f"there are no weights in {directory}", step="read the drafter")
    return found
