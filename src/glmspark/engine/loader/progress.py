"""How far a rank's loading is, in its log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("vllm.glmspark.loader")

EVERY = 2.0
"""Seconds between two lines."""


class Progress:
    """Counts bytes and says so every two seconds: bytes, rate, and how long it will still take."""

    def __init__(
        self,
        rank: int,
        total: int,
        *,
        say: Callable[[str], None] = logger.info,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rank, self.total, self.done = rank, total, 0
        self._say, self._clock = say, clock
        self._began = self._said = clock()

    def add(self, nbytes: int) -> None:
        """Count what has been handed to the model."""
        self.done += nbytes
        now = self._clock()
        if now - self._said >= EVERY and self.done < self.total:
            self._said = now
            rate = self.done / (now - self._began)
            left = (self.total - self.done) / rate if rate else 0.0
            self._say(
                f"rank {self.rank}: {self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB loaded, "
                f"{rate / 1e9:.2f} GB/s, {left:.0f} s left"
            )

    def finish(self, how: str) -> None:
        """Say the whole."""
        seconds = max(self._clock() - self._began, 1e-9)
        self._say(
            f"rank {self.rank}: {self.done / 1e9:.2f} GB loaded in {seconds:.1f} s, "
            f"{self.done / seconds / 1e9:.2f} GB/s ({how})"
        )
