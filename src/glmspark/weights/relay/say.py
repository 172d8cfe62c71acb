"""What the relay tells the control machine: JSON lines on standard output."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from typing import Any

BEAT = 0.5
"""Seconds between two lines of progress."""
_SAYING = threading.Lock()


def say(kind: str, **values: Any) -> None:
    """One JSON line: listening, progress, done, failed, file."""
    with _SAYING, contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps({"t": kind, **values}) + "\n")
        sys.stdout.flush()
