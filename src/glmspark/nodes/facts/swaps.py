"""Swap areas of a node."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Swap:
    """One swap area. kind: 'file' or 'partition'. size, used: bytes."""

    path: str
    kind: str
    size: int
    used: int


def parse_swaps(text: str) -> tuple[Swap, ...]:
    """Swap areas from the text of /proc/swaps (in units of 1,024 bytes). ValueError for anything else."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("Filename"):
        raise ValueError("/proc/swaps has no heading")
    found = []
    for line in lines[1:]:
        fields = line.split()
        if len(fields) < 5 or not (fields[-3].isdecimal() and fields[-2].isdecimal()):
            raise ValueError(f"not a swap area: {line!r}")
        # Blanks in a path are written as \040.
        name = fields[0].replace("\\040", " ")
        found.append(Swap(name, fields[-4], int(fields[-3]) * 1024, int(fields[-2]) * 1024))
    return tuple(found)


SWAPS = Fact("swap areas", ("cat", "/proc/swaps"), parse_swaps)
