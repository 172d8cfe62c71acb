"""What the supervisor and its reaper say in their log."""

from __future__ import annotations

import contextlib
import os

_STDERR = 2


def say(text: str) -> None:
    """Append a line to the log, which is this process's standard error.

    A full disk loses the line and nothing else: what watches the ranks must not end because nobody could
    read of it. Written without a buffer, so that nothing is left to fail later.
    """
    with contextlib.suppress(OSError):
        os.write(_STDERR, text.encode("utf-8", "backslashreplace") + b"\n")
