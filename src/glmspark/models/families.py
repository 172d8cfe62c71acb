"""Which architectures are served, by the model_type of their config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from glmspark.models import glm_moe_dsa
from glmspark.models.architecture import Architecture
from glmspark.models.errors import CheckpointError

__all__ = ["read_architecture"]

_FAMILIES: Mapping[str, Callable[[Mapping[str, Any], str], Architecture]] = {
    glm_moe_dsa.MODEL_TYPE: glm_moe_dsa.read,
}


def read_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture in a config.json's data; `where` names the file in errors.

    Raises CheckpointError for an architecture that is not served, and for a value that is missing or
    impossible, by its key.
    """
    model_type = config.get("model_type")
    read = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if read is None:
        said = "there is no model_type" if model_type is None else f"model_type {str(model_type)[:80]!r}"
        raise CheckpointError(
            f"{where}: {said}; this architecture is not served",
            step="read config.json",
            next=f"use a checkpoint of model_type {', '.join(sorted(_FAMILIES))}",
        )
    return read(config, where)
