"""Who holds a node's memory, and which daemons run there."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Running:
    """A process. resident: bytes of memory it holds now."""

    pid: int
    user: str
    resident: int
    name: str


def parse_ps(text: str) -> tuple[Running, ...]:
    """Processes from `ps -eo pid=,user:32=,rss=,comm=` (rss in KiB). ValueError otherwise."""
    found = []
    for line in text.splitlines():
        fields = line.split(None, 3)
        if len(fields) != 4 or not fields[0].isdecimal() or not fields[2].isdecimal():
            raise ValueError(f"not a process: {line!r}")
        found.append(Running(int(fields[0]), fields[1], int(fields[2]) * 1024, fields[3]))
    return tuple(found)


PROCESSES = Fact("processes", ("ps", "-eo", "pid=,user:32=,rss=,comm="), parse_ps)
