"""Reading a checkpoint, and writing one whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tools.glm_tiny.variants import VariantError

#: Files that go along unchanged.
COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "reap-prune-plan-full.json",
)
INDEX = "model.safetensors.index.json"


@dataclass
class Checkpoint:
    """A checkpoint in memory. `files` are the small text files beside the weights, by name."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    files: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


def read(source: Path, *, quantized: bool = False) -> Checkpoint:
    """Everything of the checkpoint in `source`, which must be quantized, or must not be, as `quantized` says.

    Raises VariantError if it is no checkpoint or of the other kind.
    """
    try:
        config = json.loads((source / "config.json").read_text())
    except FileNotFoundError as error:
        raise VariantError(
            f"{source}: no config.json here; give the folder of the glm-tiny checkpoint"
        ) from error
    if bool(config.get("quantization_config")) is not quantized:
        found, wanted = ("bf16", "a quantized") if quantized else ("quantized already", "the bf16")
        raise VariantError(f"{source}: this checkpoint is {found}; start from {wanted} one")
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(source.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    if not tensors:
        raise VariantError(f"{source}: no *.safetensors here; give the folder of the glm-tiny checkpoint")
    files = {name: (source / name).read_text() for name in COMPANIONS if (source / name).is_file()}
    return Checkpoint(config, dict(sorted(tensors.items())), files)


def _shard_names(tensors: dict[str, torch.Tensor], per_layer: bool) -> dict[str, str]:
    """The file for each tensor: one for all, or one a layer and one for what is outside the layers."""
    if not per_layer:
        return dict.fromkeys(tensors, "model.safetensors")
    layer = {name: int(m[1]) if (m := re.search(r"\blayers\.(\d+)\.", name)) else -1 for name in tensors}
    order = sorted(set(layer.values()))
    return {n: f"model-{order.index(at) + 1:05d}-of-{len(order):05d}.safetensors" for n, at in layer.items()}


def write(checkpoint: Checkpoint, target: Path, *, per_layer: bool = False) -> None:
    """Write the checkpoint as the folder `target`, which must not hold anything yet.

    The folder is made aside, synced and renamed, so a killed run leaves no half checkpoint under that name.
    The bytes depend on the checkpoint alone. Raises VariantError if `target` is taken.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise VariantError(f"{target} exists already; remove it or give another --to")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        shards = _shard_names(checkpoint.tensors, per_layer)
        for shard in sorted(set(shards.values())):
            chosen = {n: checkpoint.tensors[n].contiguous() for n, at in shards.items() if at == shard}
            save_file(chosen, aside / shard, metadata={"format": "pt"})
            (aside / shard).chmod(0o644)
        texts = dict(checkpoint.files)
        texts["config.json"] = json.dumps(checkpoint.config, indent=2, sort_keys=True) + "\n"
        if per_layer:
            index = {"metadata": {"total_size": checkpoint.size}, "weight_map": shards}
            texts[INDEX] = json.dumps(index, indent=2, sort_keys=True) + "\n"
        for name, text in texts.items():
            (aside / name).write_text(text)
        for path in (*aside.iterdir(), aside):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        aside.chmod(0o755)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
