"""Processes of this machine, read from /proc. Standard library only: the supervisor stays small.

A process is recognised by its pid and the clock tick it started at, within one boot: a pid alone may long
belong to someone else. What glmspark starts also carries a marker in its environment, which its children
inherit and a stranger cannot have by accident.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - POSIX shared memory lies there on Linux; read, not used as temp dir

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stat:
    """One row of /proc/PID/stat.

    state: one letter (Z is a zombie). started: clock ticks after boot. resident: bytes. wait_status: how it
    ended as waitpid would say, 0 while it lives or where the kernel hides it.
    """

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    started: int
    resident: int
    wait_status: int

    @property
    def ended(self) -> bool:
        """Whether it is a zombie: ended, and only its exit status is kept."""
        return self.state in "ZX"


@dataclass(frozen=True)
class Identity:
    """A process of the present boot that is never mistaken for a later one with the same pid."""

    pid: int
    started: int


def parse_stat(text: str) -> Stat:
    """A Stat from the text of /proc/PID/stat.

    The name stands in parentheses and may itself hold blanks and parentheses, so fields are counted from the
    last one. Raises ValueError for anything else.
    """
    head, bracket, tail = text.rpartition(")")
    pid, opening, name = head.partition(" (")
    fields = tail.split()
    if not bracket or not opening or len(fields) < 22:
        raise ValueError(f"not a process status: {text[:80]!r}")
    return Stat(
        pid=int(pid),
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
        resident=int(fields[21]) * _PAGE,
        wait_status=int(fields[49]) if len(fields) > 49 else 0,
    )


def read_stat(pid: int, *, proc: Path = PROC) -> Stat | None:
    """The Stat of a process, None when there is none."""
    try:
        return parse_stat((proc / str(pid) / "stat").read_bytes().decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None


def _pids(proc: Path) -> list[int]:
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]


def all_stats(*, proc: Path = PROC) -> list[Stat]:
    """The Stat of every process that can be seen; those that end meanwhile are left out."""
    found = (read_stat(pid, proc=proc) for pid in _pids(proc))
    return [stat for stat in found if stat is not None]


def identify(pid: int, *, proc: Path = PROC) -> Identity | None:
    """The identity of a living process, None for a zombie or nothing."""
    stat = read_stat(pid, proc=proc)
    return None if stat is None or stat.ended else Identity(pid, stat.started)


def is_alive(identity: Identity, *, proc: Path = PROC) -> bool:
    """Whether that very process still runs."""
    return identify(identity.pid, proc=proc) == identity


def boot_id(*, proc: Path = PROC) -> str:
    """What tells this boot from every other."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def age(identity: Identity, *, proc: Path = PROC) -> float:
    """Seconds since a process started."""
    uptime = float((proc / "uptime").read_text().split()[0])
    return max(0.0, uptime - identity.started / _TICKS)


def command(pid: int, *, proc: Path = PROC) -> str:
    """The command line for people, '' when it cannot be read."""
    return _cmdline(pid, proc).replace("\0", " ").strip()


def title(pid: int, *, proc: Path = PROC) -> str:
    """The first word of the command line: the title of a process that gave itself one."""
    return _cmdline(pid, proc).partition("\0")[0].strip()


def _cmdline(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def descendants(roots: Iterable[int], stats: Iterable[Stat]) -> list[Stat]:
    """All processes below the roots, roots not included, each once; the order is that of depth."""
    children: dict[int, list[Stat]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat)
    seen = set(roots)
    found: list[Stat] = []
    queue = list(seen)
    while queue:
        for child in children.get(queue.pop(0), []):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
                queue.append(child.pid)
    return found


def marked(name: str, value: str, *, proc: Path = PROC) -> list[Identity]:
    """Living processes whose environment at start held name=value. Other users' cannot be looked into."""
    wanted = f"{name}={value}".encode()
    found = []
    for pid in _pids(proc):
        try:
            environment = (proc / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            identity = identify(pid, proc=proc)
            if identity is not None:
                found.append(identity)
    return found


def memory(pid: int, *, proc: Path = PROC) -> int:
    """Bytes a process takes: its own pages and its share of shared ones (PSS), 0 when it cannot be read."""
    try:
        match = re.search(rb"^Pss:\s+(\d+) kB", (proc / str(pid) / "smaps_rollup").read_bytes(), re.MULTILINE)
    except OSError:
        match = None
    if match:
        return int(match[1]) * 1024
    stat = read_stat(pid, proc=proc)
    return stat.resident if stat else 0


def parse_shared_memory(maps: str, device: int) -> set[int]:
    """Inodes of files on the file system `device` that the text of /proc/PID/maps shows as mapped.

    Names there do not tell: a semaphore is made under another name and then linked to its own, so the kernel
    shows the first one, as deleted.
    """
    found = set()
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(SHARED_MEMORY):
            major, _, minor = fields[3].partition(":")
            if os.makedev(int(major, 16), int(minor, 16)) == device:
                found.add(int(fields[4]))
    return found


def shared_memory(pids: Iterable[int], *, proc: Path = PROC) -> set[str]:
    """Files that now stand under /dev/shm and that any of the processes has mapped or open.

    Processes that have ended or are another user's count for nothing.
    """
    try:
        device = Path(SHARED_MEMORY).stat().st_dev
        names = {entry.inode(): entry.path for entry in os.scandir(SHARED_MEMORY)}
    except OSError:
        return set()
    inodes: set[int] = set()
    for pid in pids:
        try:
            inodes |= parse_shared_memory((proc / str(pid) / "maps").read_text(errors="replace"), device)
            descriptors = list((proc / str(pid) / "fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                status = descriptor.stat()
            except OSError:
                continue
            if status.st_dev == device:
                inodes.add(status.st_ino)
    return {names[inode] for inode in inodes if inode in names}


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal that very process and no other. False when it has ended or may not be signalled."""
    try:
        handle = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        if not is_alive(identity):  # the handle is of the process alive now; it must be the one meant
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def wait_gone(
    identities: Iterable[Identity], seconds: float, *, clock: Callable[[], float] = time.monotonic
) -> list[Identity]:
    """Wait until all have ended, at most `seconds`. Those still alive are returned."""
    left = list(identities)
    end = clock() + seconds
    while True:
        left = [identity for identity in left if is_alive(identity)]
        if not left or clock() >= end:
            return left
        time.sleep(0.02)
