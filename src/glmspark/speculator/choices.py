"""What is taken where nobody says: a drafter's shape from its target, and the drafter in a directory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from glmspark.config.files import read_json
from glmspark.speculator import store, training
from glmspark.speculator.dataset import Dataset
from glmspark.speculator.drafter import Drafter
from glmspark.speculator.shape import DrafterError, Shape, read_shape

__all__ = ["drafter_in", "layers_of", "mask_token", "shape_for"]


def layers_of(target: Path) -> int:
    """Layers of a target. Raises DrafterError for one that has none inside."""
    found = _object(target / "config.json").get("num_hidden_layers")
    if not isinstance(found, int) or found < 2:
        raise DrafterError(f"{target}/config.json says nothing of layers whose states could be captured")
    return found


def shape_for(found: Dataset, target: Path, start: Path | None, given: dict[str, Any]) -> Shape:
    """The shape of a drafter for what a data set holds, or that of the drafter in `start`; given: what was
    asked for by name (window 0: all positions). Raises DrafterError where something is missing."""
    given = dict(given)
    if "window" in given:
        given["window"] = given["window"] or None
    if start is not None:
        return replace(read_shape(start), **given)
    config, token = _object(target / "config.json"), given.pop("mask_token", None)
    try:
        return Shape(
            hidden_size=config["hidden_size"],
            vocab_size=config["vocab_size"],
            aux_layers=found.aux_layers,
            mask_token=mask_token(target) if token is None else token,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-5)),
            max_positions=int(config.get("max_position_embeddings", 8192)),
            **given,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DrafterError(
            f"{target}/config.json is not a model's that a drafter could be made for",
            seen=f"{type(error).__name__}: {error}",
        ) from error


def mask_token(target: Path) -> int:
    """The token called [MASK], which GLM's tokenizers have and its models never write.

    Raises DrafterError where there is none.
    """
    added = _object(target / "tokenizer.json").get("added_tokens", [])
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and token.get("content") == "[MASK]" and isinstance(token.get("id"), int):
            return int(token["id"])
    raise DrafterError(
        f"the tokenizer in {target} has no [MASK]",
        next="name a token that the model never writes: --mask-token N",
    )


def drafter_in(directory: Path, *, trained: bool = False) -> Drafter:
    """The drafter of a training, or an exported one; trained: only the former.

    Raises DrafterError where there is none.
    """
    state = training.resume(directory)
    if state is None:
        if trained:
            raise DrafterError(f"{directory} holds no training", next="name a directory that `train` wrote")
        return store.read_drafter(directory)
    shape = json.loads(state["identity"])["shape"]
    made = Drafter(Shape(**shape | {"aux_layers": tuple(shape["aux_layers"])}))
    made.load_state_dict(state["drafter"])
    return made


def _object(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise DrafterError(f"{path} holds no JSON object")
    return found
