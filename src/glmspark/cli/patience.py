"""A sign of life while one waits for an answer's tokens, and a hint when none comes for long."""

from __future__ import annotations

import threading
import time
from typing import TextIO

from glmspark.cli.console import own_command

AFTER = 2.0
"""Seconds of silence from which waiting is shown, on a terminal."""
LONG = 30.0
"""Seconds of silence from which a hint is given: a long prompt takes that, and so does a rank that hangs."""

_ERASE = "\r\x1b[K"


class Patience:
    """Watches for silence in a thread of its own. Used as a context; `sign` says that something came."""

    def __init__(self, stream: TextIO, *, after: float = AFTER, long: float = LONG) -> None:
        self._stream, self._after, self._long = stream, after, long
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._begun = self._hinted = self._shown = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Patience:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with self._lock:
            self._clear()

    def sign(self) -> None:
        """Something came; to be called before it is written."""
        with self._lock:
            self._last, self._begun, self._hinted = time.monotonic(), True, False
            self._clear()

    def _clear(self) -> None:
        if self._shown:
            self._stream.write(_ERASE)
            self._stream.flush()
            self._shown = False

    def _watch(self) -> None:
        while not self._over.wait(min(0.5, self._after / 2)):
            with self._lock:
                self._look(time.monotonic() - self._last)

    def _look(self, silent: float) -> None:
        if silent >= self._long and not self._hinted:
            self._clear()
            begin = "\n" if self._begun and self._stream.isatty() else ""
            advice = f"`{own_command()} status` says whether every rank lives"
            self._stream.write(f"{begin}no token for {silent:.0f} s: {advice}\n")
            self._hinted = True
            self._stream.flush()
        # Within an answer the cursor stands in its text, where nothing may be written over.
        if silent >= self._after and not self._begun and self._stream.isatty():
            self._stream.write(f"{_ERASE}waiting for the first token: {silent:.0f} s")
            self._stream.flush()
            self._shown = True
