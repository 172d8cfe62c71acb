"""From a recipe's model.source to a directory on this machine. Nothing is downloaded."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from glmspark.config.paths import expand, state_dir
from glmspark.config.recipe import ModelSource
from glmspark.models.errors import CheckpointError

__all__ = ["locate"]


def locate(source: ModelSource) -> Path:
    """The directory of a model. Whether a usable checkpoint lies there is `inspect_checkpoint`'s to say.

    package:NAME is looked for in the package's data, then in the state directory's checkpoints/, where a
    script puts the variants of glm-tiny. path:/dir is itself. hf:org/name@revision is looked for where
    `glmspark fetch` puts it, then in the Hugging Face cache: $HF_HUB_CACHE, $HF_HOME/hub or
    ~/.cache/huggingface/hub. Raises CheckpointError naming the places looked at.
    """
    if source.kind == "path":
        return expand(source.name)
    return _package(source.name) if source.kind == "package" else _hub(source)


def _package(name: str) -> Path:
    shipped = Path(str(files("glmspark.recipes"))) / "checkpoints" / name
    made = state_dir() / "checkpoints" / name
    for directory in (shipped, made):
        if directory.is_dir():
            return directory
    if name.startswith("glm-tiny-"):
        raise CheckpointError(
            f"the checkpoint {name} has not been made yet",
            step="find the model",
            seen=f"not in {made}",
            next=f"in a checkout of glmspark: python -m tools.glm_tiny.variants {name}",
        )
    raise CheckpointError(
        f"no checkpoint {name} comes with glmspark",
        step="find the model",
        seen=f"not in {shipped.parent}, not in {made.parent}",
        next="check model.source in the recipe",
    )


def _hub(source: ModelSource) -> Path:
    from glmspark.config.cluster import Paths

    cache = _hub_cache()
    repository = cache / f"models--{source.name.replace('/', '--')}"
    revision = str(source.revision)
    fetched = expand(Paths().models) / source.directory
    if (fetched / "config.json").is_file():
        return fetched
    for name in (revision, _resolve(repository / "refs" / revision)):
        if name and (repository / "snapshots" / name).is_dir():
            return repository / "snapshots" / name
    raise CheckpointError(
        f"{source.name} at revision {revision} is not on this machine",
        step="find the model",
        seen=f"not in {fetched}, not in {repository}",
        next="`glmspark fetch RECIPE` brings it here",
    )


def _hub_cache() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return expand(cache)
    if home := os.environ.get("HF_HOME"):
        return expand(home) / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand(base) / "huggingface" / "hub"


def _resolve(ref: Path) -> str | None:
    """The commit a branch or tag name stood for when it was downloaded."""
    try:
        commit = ref.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if commit and commit.isalnum() else None
