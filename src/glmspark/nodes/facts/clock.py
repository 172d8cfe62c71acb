"""A node's clock."""

from __future__ import annotations

from glmspark.nodes.facts import Fact


def parse_seconds(text: str) -> float:
    """Seconds since 1970 from `date +%s.%N`. Raises ValueError for anything else."""
    return float(text.strip())


def parse_synchronized(text: str) -> bool:
    """Whether the kernel's clock is kept in step, from `timedatectl show`. ValueError without the row."""
    for line in text.splitlines():
        if line.startswith("NTPSynchronized="):
            return line.partition("=")[2].strip() == "yes"
    raise ValueError("timedatectl names no NTPSynchronized")


def offset(before: float, there: float, after: float) -> tuple[float, float]:
    """How far a node's clock is ahead of ours, and how sure that is, both in seconds.

    before, after: our clock when the question left and when the answer came; there: the node's in between.
    The error is at most half of the time between, whichever way the travel time was shared (as in NTP).
    """
    return there - (before + after) / 2, max(0.0, (after - before) / 2)


CLOCK = Fact("clock", ("date", "+%s.%N"), parse_seconds)
SYNCHRONIZED = Fact("clock synchronisation", ("timedatectl", "show"), parse_synchronized)
