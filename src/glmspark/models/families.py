"""Which architectures are known, and which of them are served, by the model_type of their config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from glmspark.models import glm5_next, glm_moe_dsa
from glmspark.models.architecture import Architecture
from glmspark.models.errors import CheckpointError

__all__ = ["known_architecture", "read_architecture"]

_Reader = Callable[[Mapping[str, Any], str], Architecture]

_SERVED: Mapping[str, _Reader] = {
    glm_moe_dsa.MODEL_TYPE: glm_moe_dsa.read,
    glm5_next.MODEL_TYPE: glm5_next.read,
}
_KNOWN: Mapping[str, _Reader] = {**_SERVED, glm5_next.TEXT_TYPE: glm5_next.read}
"""Also what is no model by itself: the text part of one."""


def read_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture in a config.json's data; `where` names the file in errors.

    Raises CheckpointError for an architecture that is not served, and for a value that is missing or
    impossible, by its key.
    """
    return _read(config, where, _SERVED, "this architecture is not served")


def known_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """As read_architecture, also for checkpoints that can be looked at and moved but not planned for."""
    return _read(config, where, _KNOWN, "this architecture is not known")


def _read(
    config: Mapping[str, Any], where: str, families: Mapping[str, _Reader], verdict: str
) -> Architecture:
    model_type = config.get("model_type")
    read = families.get(model_type) if isinstance(model_type, str) else None
    if read is None:
        said = "there is no model_type" if model_type is None else f"model_type {str(model_type)[:80]!r}"
        raise CheckpointError(
            f"{where}: {said}; {verdict}",
            step="read config.json",
            next=f"use a checkpoint of model_type {', '.join(sorted(families))}",
        )
    return read(config, where)
