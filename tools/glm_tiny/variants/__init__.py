"""Variants of glm-tiny, made in seconds: pruned, quantized as people publish them, and Flash's architecture.

`derive` makes one in memory and `make` writes it; `python -m tools.glm_tiny.variants NAME` does so by hand.
The same source gives the same bytes. None of it is part of the package: it needs torch and
compressed-tensors, which the `cpu` extra brings.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tools.glm_tiny.variants.checkpoint import Checkpoint

#: The name of the checkpoint that all of them are made from.
BASE = "glm-tiny"
#: The file in a variant's folder that says from what it was made.
RECORD = "glm-tiny-variant.json"


class VariantError(ValueError):
    """A variant cannot be made from what is there; the message says what was found and what to do."""


@dataclass(frozen=True)
class Variant:
    """How a variant is made: `module`.`function` with `options` on the checkpoint named `source`."""

    summary: str
    module: str
    function: str = "derive"
    options: dict[str, Any] = field(default_factory=dict)
    source: str = BASE
    #: Several files with an index, one a layer, as large checkpoints come.
    per_layer: bool = False


VARIANTS = {
    "glm-tiny-reap": Variant(
        "experts pruned 8 to 5 by REAP, original expert numbers, no MTP weights", "reap"
    ),
    "glm-tiny-reap-whole-router": Variant(
        "the same with all router rows left in", "reap", options={"router": "original"}
    ),
    "glm-tiny-reap-renumbered": Variant(
        "the same with experts numbered 0 to 4", "reap", options={"numbering": "renumbered"}
    ),
    "glm-tiny-nvfp4": Variant("compressed-tensors NVFP4, weights only; attention in bf16", "nvfp4"),
    "glm-tiny-nvfp4-attention": Variant(
        "the same with attention in NVFP4 too", "nvfp4", options={"attention": "nvfp4"}
    ),
    "glm-tiny-nvfp4-modelopt": Variant(
        "ModelOpt NVFP4, W4A4 with calibrated input scales", "nvfp4", "derive_modelopt"
    ),
    "glm-tiny-nvfp4-modelopt-w4a16": Variant(
        "ModelOpt NVFP4, declared weights only", "nvfp4", "derive_modelopt", {"algorithm": "W4A16_NVFP4"}
    ),
    "glm-tiny-nvfp4-modelopt-faulty": Variant(
        "as published by mistake: W4A4 without input scales, gate and up with scales of their own",
        "nvfp4",
        "derive_modelopt",
        {"input_scale": False, "shared_scale": False},
    ),
    "glm-tiny-int4-int8mix": Variant(
        "compressed-tensors int4 experts, int8 linears, int8 MTP", "int4_int8mix", per_layer=True
    ),
    "glm-tiny-reap-nvfp4": Variant(
        "glm-tiny-reap in NVFP4, as the 469B checkpoint", "nvfp4", source="glm-tiny-reap"
    ),
    "glm-tiny-flash": Variant("GLM-5.3-Flash's architecture, random weights", "flash"),
}


def derive(name: str, source: Path, **options: Any) -> Checkpoint:
    """The variant called `name` in memory, from the checkpoint folder `source`.

    `source` is the checkpoint that `VARIANTS[name].source` names. `options` replace the variant's own; see
    the function in its module. Raises VariantError if there is no such variant or the checkpoint does not do.
    """
    if name not in VARIANTS:
        raise VariantError(f"no variant is called {name!r}; there are {', '.join(VARIANTS)}")
    variant = VARIANTS[name]
    function = getattr(importlib.import_module(f"{__name__}.{variant.module}"), variant.function)
    return function(source, **{**variant.options, **options})


def fingerprint(source: Path) -> str:
    """SHA-256 over a checkpoint's config, tokenizer and weights: what a variant depends on."""
    digest = hashlib.sha256()
    for path in (source / "config.json", source / "tokenizer.json", *sorted(source.glob("*.safetensors"))):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def record(name: str, source: Path, options: dict[str, Any]) -> str:
    """What `RECORD` says in a variant's folder: from what it was made, and how."""
    made = {"variant": name, "options": options, "source_sha256": fingerprint(source)}
    return json.dumps(made, indent=2, sort_keys=True) + "\n"


def is_current(name: str, source: Path, target: Path, **options: Any) -> bool:
    """Whether `target` holds this variant of this source already."""
    path = target / RECORD
    return path.is_file() and path.read_text() == record(name, source, {**VARIANTS[name].options, **options})


def make(
    name: str, source: Path, target: Path, *, per_layer: bool | None = None, **options: Any
) -> Checkpoint:
    """Derive the variant and write it to the folder `target`, whole or not at all; returns it.

    `per_layer` None takes the variant's own choice of one file or several. Raises VariantError if `target`
    holds anything, and as `derive` does.
    """
    from tools.glm_tiny.variants.checkpoint import write

    made = derive(name, source, **options)
    made.files[RECORD] = record(name, source, {**VARIANTS[name].options, **options})
    write(made, target, per_layer=VARIANTS[name].per_layer if per_layer is None else per_layer)
    return made
