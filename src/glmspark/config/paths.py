"""Where glmspark keeps its own records, and which recipes it brings: nothing that is slow to load."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from glmspark.errors import UsageError

__all__ = ["expand", "recipe_names", "state_dir"]


def expand(path: str | os.PathLike[str]) -> Path:
    """The path with a leading ~ or ~user replaced. UsageError for a user without a home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = os.fspath(path).split("/")[0]
        raise UsageError(
            f"{os.fspath(path)}: there is no home directory for {user}", next="write the path out"
        ) from None


def state_dir() -> Path:
    """The state directory: $GLMSPARK_STATE_DIR, else $XDG_STATE_HOME/glmspark, else ~/.local/state/glmspark.

    It is not created here. A relative $XDG_STATE_HOME is ignored, as the XDG base directory specification
    says; a relative $GLMSPARK_STATE_DIR is taken from the current directory.
    """
    own = os.environ.get("GLMSPARK_STATE_DIR")
    if own:
        return expand(own).absolute()
    xdg = os.environ.get("XDG_STATE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "glmspark"
    return expand("~") / ".local" / "state" / "glmspark"


def recipe_names() -> list[str]:
    """Names of the recipes that come with glmspark, sorted."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in files("glmspark.recipes").iterdir()
        if entry.name.endswith(".yaml")
    )
