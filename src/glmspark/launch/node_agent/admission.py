"""Admission: whether the API takes new work, as a guard asks of it. A file tells the engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .files import Trouble, say, write
from .spec import Spec

FILE = "admission-closed"
"""In the rank's scratch directory; glmspark.engine.admission looks for it."""
LASTS = 30.0
"""Seconds after which a closed admission is open again unless it was asked for anew: a guard may be gone."""


class Admission:
    """Of rank 0's API. changed: takes what state.json says of it."""

    def __init__(self, spec: Spec, changed: Callable[..., None]) -> None:
        self._file = None if spec.scratch is None else Path(spec.scratch) / FILE
        self._changed = changed
        self._until: float | None = None
        self._node: object = None  # the last that asked for it to be closed

    @property
    def is_open(self) -> bool:
        """Whether new work is taken."""
        return self._until is None

    def ask(self, wanted: Mapping[str, Any], now: float) -> None:
        """Open or close it. wanted: open, and where it is false reason and node. now: monotonic seconds."""
        if wanted["open"]:
            if wanted.get("node") == self._node:
                self._open()
            return
        self._node = wanted.get("node")
        what = f"{(wanted.get('reason') or {}).get('what') or 'it is short of memory'} on {self._node}"
        begins, self._until = self._until is None, now + LASTS
        if self._file is not None:
            try:
                write(self._file, f"no new work is taken now: {what}\n".encode())
            except Trouble as trouble:
                say(f"admission cannot be closed: {trouble}")
        if begins:
            say(f"admission closed: {what}")
            self._changed(admission={"open": False, "since": time.time(), "why": what})

    def tick(self, now: float) -> None:
        """Open it again where nobody repeats that it be closed."""
        if self._until is not None and now > self._until:
            self._open()

    def _open(self) -> None:
        if self._until is None:
            return
        self._until = None
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
        say("admission open")
        self._changed(admission={"open": True, "since": time.time(), "why": None})
