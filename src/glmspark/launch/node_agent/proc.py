"""Processes of this node, read from /proc; those of ours by the mark in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ID_MARK, HOME_MARK = "GLMSPARK_DEPLOYMENT", "GLMSPARK_DEPLOYMENT_DIR"
"""Environment variables that say whose a process is; its children inherit them."""
SHM = "/dev/shm/"  # noqa: S108 - where Linux keeps shared memory


@dataclass(frozen=True)
class Stat:
    """A row of /proc/PID/stat. started: clock ticks after boot; with the pid it names a process for ever."""

    pid: int
    state: str
    parent: int
    group: int
    started: int
    resident: int


def parse_stat(text: str) -> Stat:
    """A Stat from the file's text; the name in it may hold blanks and parentheses. Raises ValueError."""
    head, bracket, tail = text.rpartition(")")
    fields = tail.split()
    if not bracket or len(fields) < 22:
        raise ValueError(f"not a process status: {text[:80]!r}")
    page = os.sysconf("SC_PAGE_SIZE")
    return Stat(
        int(head.partition(" ")[0]),
        fields[0],
        int(fields[1]),
        int(fields[2]),
        int(fields[19]),
        int(fields[21]) * page,
    )


def living(pid: int) -> Stat | None:
    """The process, None where there is none or a zombie."""
    try:
        found = parse_stat(Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None
    return None if found.state in "ZX" else found


def everyone() -> list[Stat]:
    """All living processes that can be seen."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [found for found in map(living, pids) if found is not None]


def below(root: int, stats: Iterable[Stat]) -> list[Stat]:
    """A process and all below it."""
    children: dict[int, list[Stat]] = {}
    own = []
    for one in stats:
        children.setdefault(one.parent, []).append(one)
        own += [one] if one.pid == root else []
    queue, found = list(own), list(own)
    while queue:
        more = [one for one in children.get(queue.pop().pid, []) if one not in found]
        queue += more
        found += more
    return found


def marked(home: str | None = None) -> list[tuple[Stat, str]]:
    """Living processes with our mark, each with the directory it names; only those of `home` if given."""
    found = []
    for one in everyone():
        if one.pid == os.getpid():
            continue
        try:
            variables = Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            name, _, text = variable.partition(b"=")
            if name == HOME_MARK.encode() and (home is None or os.fsencode(home) == text):
                found.append((one, os.fsdecode(text)))
    return found


def title(pid: int) -> str:
    """The first word of a process's command line."""
    return command_line(pid).partition("\0")[0].strip()


def command_line(pid: int) -> str:
    """The words of a process's command line, each followed by NUL; '' where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def send(one: Stat, number: signal.Signals) -> bool:
    """Signal that very process and no other."""
    try:
        handle = os.pidfd_open(one.pid)
    except OSError:
        return False
    try:
        now = living(one.pid)
        if now is None or now.started != one.started:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def wait_gone(these: Iterable[Stat], seconds: float) -> list[Stat]:
    """Wait until all have ended; those that have not within the time."""
    left, end = list(these), time.monotonic() + seconds
    while True:
        left = [one for one in left if (now := living(one.pid)) is not None and now.started == one.started]
        if not left or time.monotonic() >= end:
            return left
        time.sleep(0.02)


def mapped(maps: str, device: int) -> set[int]:
    """Inodes of the files under /dev/shm, on the file system `device`, in the text of /proc/PID/maps."""
    found = set()
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(SHM):
            major, _, minor = fields[3].partition(":")
            if os.makedev(int(major, 16), int(minor, 16)) == device:
                found.add(int(fields[4]))
    return found


def changed_memory() -> int:
    """When a file was last made or removed under /dev/shm, in nanoseconds; 0 where that is not known."""
    with contextlib.suppress(OSError):
        return Path(SHM).stat().st_mtime_ns
    return 0


def segments(texts: Iterable[str]) -> set[str]:
    """Files that stand under /dev/shm and are mapped according to the texts of /proc/PID/maps."""
    try:
        device = Path(SHM).stat().st_dev
        names = {entry.inode(): entry.path for entry in os.scandir(SHM)}
    except OSError:
        return set()
    inodes = set().union(*(mapped(text, device) for text in texts))
    return {names[inode] for inode in inodes if inode in names}


def maps_of(pids: Iterable[int]) -> Iterator[str]:
    """The memory maps of processes, as far as they may be read."""
    for pid in pids:
        with contextlib.suppress(OSError):
            yield Path(f"/proc/{pid}/maps").read_text(errors="replace")


def oom_kills() -> int:
    """How often the kernel's out-of-memory killer has acted since boot."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def boot_id() -> str:
    """What tells this boot from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def memory(one: Stat) -> int:
    """Bytes of a process: its own pages and its share of others (PSS), or the resident ones."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return one.resident
