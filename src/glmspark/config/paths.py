"""Where glmspark keeps its own records."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["state_dir"]


def state_dir() -> Path:
    """The state directory: $GLMSPARK_STATE_DIR, else $XDG_STATE_HOME/glmspark, else ~/.local/state/glmspark.

    It is not created here. A relative $XDG_STATE_HOME is ignored, as the XDG base directory specification
    says; a relative $GLMSPARK_STATE_DIR is taken from the current directory.
    """
    own = os.environ.get("GLMSPARK_STATE_DIR")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_STATE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "glmspark"
    return Path.home() / ".local" / "state" / "glmspark"
