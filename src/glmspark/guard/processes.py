"""Processes of this node, read from /proc."""

from __future__ import annotations

from dataclasses import dataclass

from .files import Roots
from .memory import PAGE

_TICKS = 100
"""Clock ticks a second that /proc counts in (USER_HZ), the same on all of Linux' 64-bit machines."""


@dataclass(frozen=True)
class Process:
    """A row of /proc/PID/stat. started: ticks after the node's start; with the pid it names a process for
    ever. cpu_s: seconds of processor time it has had. resident: bytes, shared memory included."""

    pid: int
    name: str
    state: str
    parent: int
    started: int
    cpu_s: float
    resident: int

    @property
    def halted(self) -> bool:
        """Whether it is stopped by a signal or a debugger."""
        return self.state in ("T", "t")


def parse_stat(text: str) -> Process:
    """The process in the file's text; its name may hold blanks and parentheses. Raises ValueError."""
    head, bracket, tail = text.rpartition(")")
    number, _, name = head.partition(" (")
    fields = tail.split()
    if not bracket or len(fields) < 22:
        raise ValueError(f"not a process status: {text[:80]!r}")
    return Process(
        int(number),
        name,
        fields[0],
        int(fields[1]),
        int(fields[19]),
        (int(fields[11]) + int(fields[12])) / _TICKS,
        int(fields[21]) * PAGE,
    )


def read_process(roots: Roots, pid: int) -> Process | None:
    """A process, None where there is none or a zombie."""
    try:
        found = parse_stat(roots.read(f"/proc/{pid}/stat"))
    except (OSError, ValueError):
        return None
    return None if found.state in ("Z", "X") else found


def named(roots: Roots, name: str) -> list[Process]:
    """Processes with a program's name."""
    found = []
    for entry in roots.names("/proc"):
        if entry.isdecimal():
            one = read_process(roots, int(entry))
            if one is not None and one.name == name:
                found.append(one)
    return found
