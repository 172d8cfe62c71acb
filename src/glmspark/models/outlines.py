"""The outline of the model that a recipe names: from its headers where it lies here, else by its name."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glmspark.config.files import write_atomic
from glmspark.config.paths import expand, state_dir
from glmspark.config.recipe import ModelSource
from glmspark.errors import GlmsparkError
from glmspark.models.checkpoint import INDEX, inspect_checkpoint
from glmspark.models.errors import CheckpointError
from glmspark.models.families import known_architecture
from glmspark.models.outline import Outline, Weights, outline_of, outline_published
from glmspark.models.published import CHECKPOINTS, find
from glmspark.models.source import locate

__all__ = ["outline_for"]

_VERSION = 1


def outline_for(source: ModelSource, directory: str | os.PathLike[str] | None = None) -> Outline:
    """The outline of a recipe's model. directory: of a checkpoint to look at instead.

    Headers of large checkpoints take seconds to read, so what they add up to is kept in the state directory
    until a file changes. Raises CheckpointError for a checkpoint that is broken, and for one that is
    neither here nor known by name.
    """
    if directory is not None:
        return _read(expand(directory))
    try:
        return _read(locate(source))
    except CheckpointError as error:
        known = find(source.name) if source.kind == "hf" else None
        if known is not None:
            return outline_published(source.name, known)
        if source.kind != "hf":
            raise
        raise CheckpointError(
            f"{source.name} is not on this machine, nor one of {len(CHECKPOINTS)} checkpoints known by name",
            step="find the model",
            seen=error.seen,
            next="give its directory with --model DIR, or `glmspark fetch` it first",
        ) from None


def _read(directory: Path) -> Outline:
    stamp = _stamp(directory)
    place = (
        state_dir()
        / "outlines"
        / f"{hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:32]}.json"
    )
    if stamp is not None and (kept := _kept(place, directory, stamp)) is not None:
        return kept
    found = outline_of(inspect_checkpoint(directory))
    if stamp is not None and len(found.weights) > 0:
        data = {
            "version": _VERSION,
            "stamp": stamp,
            "weights": [_weights_data(one) for one in found.weights],
            "has_mtp": found.has_mtp,
            "has_indexer": found.has_indexer,
        }
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, json.dumps(data).encode())
        except (OSError, GlmsparkError):
            pass  # it is only kept to be faster the next time
    return found


def _stamp(directory: Path) -> list[list[Any]] | None:
    """Size and time of every file that headers or shapes come from; None where they cannot be looked at."""
    try:
        names = sorted(path for path in directory.iterdir() if path.name.endswith((".safetensors", ".json")))
        statuses = [(path.name, path.stat()) for path in names]
    except OSError:
        return None
    if not any(name in (INDEX, "config.json") for name, _ in statuses):
        return None
    return [[name, status.st_size, status.st_mtime_ns] for name, status in statuses]


def _weights_data(one: Weights) -> dict[str, Any]:
    return {**asdict(one), "layer": None if one.layer is None else one.layer.index}


def _kept(place: Path, directory: Path, stamp: list[list[Any]]) -> Outline | None:
    """What was kept of these very files; None for anything else, also for a file that says nonsense."""
    try:
        data = json.loads(place.read_bytes())
        if data["version"] != _VERSION or data["stamp"] != stamp:
            return None
        config = json.loads((directory / "config.json").read_bytes())
        architecture = known_architecture(config, str(directory / "config.json"))
        layers = {layer.index: layer for layer in (*architecture.layers, *architecture.mtp_layers)}
        weights = tuple(
            Weights(**{**one, "layer": None if one["layer"] is None else layers[one["layer"]]})
            for one in data["weights"]
        )
        return Outline(
            str(directory),
            architecture,
            weights,
            bool(data["has_mtp"]),
            bool(data["has_indexer"]),
            exact=True,
        )
    except (OSError, ValueError, KeyError, TypeError, CheckpointError):
        return None
