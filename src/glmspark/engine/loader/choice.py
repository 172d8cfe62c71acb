"""Which way of reading is the faster one, found out from the pieces that are read anyway."""

from __future__ import annotations

import math
import statistics
from collections import deque

from glmspark.engine.loader.files import Mode

STRETCH = 3
"""Pieces that are read in one way before the other has its turn. The first of them is not measured: it shares
the disk with the last one of the stretch before."""
PROBE_STRETCHES = 12
"""At most so many of each way, by turns, at the start."""
PROBE_SECONDS = 0.8
"""After so much reading, what was measured has to do."""
PLAINLY = 1.5
"""Times as fast as the other, in every stretch of two each, needs no more measuring."""
BUFFERED_MUST_BE = 1.05
"""Times as fast as O_DIRECT, to be chosen: it takes a core's time and another copy."""
CHANGED_FOR = 1.25
"""Times as fast as the way in use, for a change later on: less is the disk's own coming and going."""
RECENT = 6
"""Stretches of each way that count: a disk's rate changes with what else it does."""
LOOKING_AGAIN = 0.02
"""Share of the time that may be lost to looking, now and then, whether the other way is faster by now."""

OTHER = {Mode.DIRECT: Mode.BUFFERED, Mode.BUFFERED: Mode.DIRECT}


class Choice:
    """Says how to read the next piece, and learns from how long the last ones took.

    Reading is never held up for it: at the start the two ways take turns, then the faster one reads, and the
    other has a stretch now and then, the rarer the slower it is. A fixed `mode` is kept to.
    """

    def __init__(self, mode: Mode | None, threads: int) -> None:
        self.fixed = mode is not None
        self.mode = mode or Mode.DIRECT
        self.probing = not self.fixed
        self.probe_seconds = 0.0
        self.changes = 0
        self._threads = threads
        self._rates: dict[Mode, deque[float]] = {way: deque(maxlen=PROBE_STRETCHES) for way in Mode}
        self._asked: deque[tuple[Mode, int]] = (
            deque()
        )  # of pieces under way: how, and the place in its stretch
        self._turn = 0  # which stretch of the probe
        self._place = 0  # in the stretch
        self._since = 0  # pieces since the other way had its stretch
        self._looking = False
        self._bytes, self._seconds = 0, 0.0

    def next(self) -> Mode:
        """How to read the next piece."""
        if self.fixed:
            return self.mode
        if self._place == STRETCH:
            self._place, self._turn = 0, self._turn + 1
            self._looking = not self.probing and not self._looking and self._since >= self._patience()
            if self._looking:
                self._since = 0
        if self.probing:
            # Direct, buffered, buffered, direct, ...: what changes steadily harms both alike.
            way = Mode.BUFFERED if self._turn % 4 in (1, 2) else Mode.DIRECT
        else:
            way = OTHER[self.mode] if self._looking else self.mode
            self._since += not self._looking
        self._asked.append((way, self._place))
        self._place += 1
        return way

    def add(self, nbytes: int, seconds: float) -> None:
        """Count the oldest piece that is under way: its bytes, and the sum of what its requests took."""
        if self.fixed:
            return
        way, place = self._asked.popleft()
        if self.probing:
            self.probe_seconds += seconds / self._threads
        if place:
            self._bytes += nbytes
            self._seconds += seconds
        if place == STRETCH - 1:
            # As many requests as there are threads run at once.
            self._rates[way].append(self._bytes * self._threads / max(self._seconds, 1e-9))
            self._bytes, self._seconds = 0, 0.0
            self._decide()

    def only_buffered(self) -> None:
        """The file system refuses O_DIRECT: nothing is left to choose."""
        self.fixed, self.probing, self.mode = True, False, Mode.BUFFERED

    def rate(self, way: Mode) -> float:
        """Bytes a second, the median of the last stretches: one that waited for another process says little.
        0 where nothing was measured."""
        recent = list(self._rates[way])[-(PROBE_STRETCHES if self.probing else RECENT) :]
        return statistics.median(recent or [0.0])

    @property
    def measured(self) -> bool:
        """Whether both ways have been."""
        return all(self._rates.values())

    def _decide(self) -> None:
        if not self.measured or (self.probing and not self._enough()):
            return
        if self.probing:
            clearly = self.rate(Mode.BUFFERED) > BUFFERED_MUST_BE * self.rate(Mode.DIRECT)
            self.mode, self.probing = (Mode.BUFFERED if clearly else Mode.DIRECT), False
        elif self.rate(OTHER[self.mode]) > CHANGED_FOR * self.rate(self.mode):
            self.mode = OTHER[self.mode]
            self.changes += 1

    def _enough(self) -> bool:
        counts = [len(rates) for rates in self._rates.values()]
        if self.probe_seconds >= PROBE_SECONDS or min(counts) >= PROBE_STRETCHES:
            return True
        slowest = {way: min(rates) for way, rates in self._rates.items()}
        return min(counts) >= 2 and any(slowest[way] > PLAINLY * max(self._rates[OTHER[way]]) for way in Mode)

    def _patience(self) -> int:
        """Pieces between two stretches of the slower way, so that they cost no more than LOOKING_AGAIN."""
        slower, faster = self.rate(OTHER[self.mode]), self.rate(self.mode)
        lost = STRETCH * max(faster / max(slower, 1.0) - 1, 0.0)
        return max(16 * STRETCH, math.ceil(lost / LOOKING_AGAIN))
