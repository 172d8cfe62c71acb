"""The ring: what was seen in the last hour, on disk within a second.

    ring/20261130T1904.jsonl    one file a minute (UTC), one JSON value a line

Lines are written and synced by a thread of their own: a disk that takes its time must not keep the guard from
looking. The last line of a file may be torn by a crash; `read_lines` leaves it out.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from .files import give, make_dir, say, write_all, write_whole

KEPT_S = 3600
SIZE = 24 * 2**20
"""Bytes the ring may take in all: an hour at four looks a second takes 14 MiB."""
SEGMENT = re.compile(r"[0-9]{8}T[0-9]{4}\.jsonl")
_SYNC = 1.0
_FREE_AGAIN, _LATE = 300.0, 10
"""Seconds until a full disk costs more of the past; the last files, which it never does."""
_WAITING = 2000
"""Lines that may wait for the disk; more are dropped, the oldest first."""


def segment_name(at: float) -> str:
    """The file for a moment in Unix seconds."""
    return time.strftime("%Y%m%dT%H%M", time.gmtime(at)) + ".jsonl"


def segment_time(name: str) -> float:
    """The moment a file's name stands for, in Unix seconds. By hand: the library's way loads half of it."""
    year, month, day = int(name[:4]), int(name[4:6]), int(name[6:8])
    year -= month <= 2  # years that begin with March end with the leap day
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day
    return (days - 719_469) * 86400.0 + int(name[9:11]) * 3600 + int(name[11:13]) * 60


def segments(directory: str) -> list[str]:
    """Names of a ring's files, the oldest first."""
    try:
        return sorted(name for name in os.listdir(directory) if SEGMENT.fullmatch(name))  # noqa: PTH208
    except OSError:
        return []


def trim(directory: str, *, now: float, size: int = SIZE, kept_s: float = KEPT_S) -> None:
    """Remove files older than the ring's time, and the oldest ones while it is too large; never the last.

    Names far ahead are of a clock that was wrong: they go first when there is too much, and as soon as the
    ring's time is full without them.
    """
    names = segments(directory)
    oldest, ahead = segment_name(now - kept_s), segment_name(now + kept_s)
    wrong = [name for name in names if name > ahead]
    names = names[: len(names) - len(wrong)]
    if names and names[0] <= segment_name(now - kept_s + 60):
        for name in wrong:
            with contextlib.suppress(OSError):
                os.unlink(f"{directory}/{name}")  # noqa: PTH108
        wrong = []
    names = wrong + names
    sizes = {}
    for name in names:
        with contextlib.suppress(OSError):
            sizes[name] = os.stat(f"{directory}/{name}").st_size  # noqa: PTH116
    total = sum(sizes.values())
    for name in names[:-1]:
        if (name >= oldest or name in wrong) and total <= size:
            if name in wrong:
                continue
            break
        with contextlib.suppress(OSError):
            os.unlink(f"{directory}/{name}")  # noqa: PTH108
        total -= sizes.get(name, 0)


def read_lines(directory: str, *, last: int | None = None) -> Iterator[Any]:
    """The values in a ring, the oldest first; `last`: only of so many files. Torn or foreign lines are left
    out."""
    names = segments(directory)
    for name in names if last is None else names[-last:]:
        try:
            with open(f"{directory}/{name}", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                for line in file:
                    with contextlib.suppress(ValueError, RecursionError):
                        yield json.loads(line)
        except OSError:
            continue


class Recorder:
    """Writes the ring and the state file in a thread. full: told of a closed file's name."""

    def __init__(
        self,
        home: str,
        *,
        group: int | None = None,
        closed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = f"{home}/ring"
        self.problem: str | None = None
        self._state = f"{home}/state.json"
        self._group = group
        self._closed = closed
        self._clock = clock
        self._work: queue.Queue[tuple[str, float, bytes] | None] = queue.Queue(maxsize=_WAITING)
        self._name = ""
        self._freed = -_FREE_AGAIN
        self._handle = -1
        make_dir(self.directory, group=group)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def line(self, at: float, value: Any) -> None:
        """Record a value. at: Unix seconds."""
        self._put(("line", at, json.dumps(value, separators=(",", ":")).encode() + b"\n"))

    def state(self, at: float, value: Any) -> None:
        """Replace the state file."""
        self._put(("state", at, json.dumps(value, separators=(",", ":")).encode() + b"\n"))

    def _put(self, one: tuple[str, float, bytes]) -> None:
        try:
            self._work.put_nowait(one)
        except queue.Full:
            with contextlib.suppress(queue.Empty):
                self._work.get_nowait()
            with contextlib.suppress(queue.Full):
                self._work.put_nowait(one)

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits, and end."""
        with contextlib.suppress(queue.Full):
            self._work.put(None, timeout=timeout)
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            work = [self._work.get()]
            with contextlib.suppress(queue.Empty):
                while len(work) < _WAITING:
                    work.append(self._work.get_nowait())
            try:
                self._write(work)
                self.problem = None
            except OSError as error:
                self._failed(error)
            if None in work:
                return
            time.sleep(_SYNC / 4)

    def _failed(self, error: OSError) -> None:
        if self.problem is None:
            say(f"cannot record: {error}")
        self._shut()
        now = time.monotonic()
        if error.errno == errno.ENOSPC and now - self._freed >= _FREE_AGAIN:
            # Half of the past for the present; but who fills the disk takes that, too, so not at once again,
            # and what was seen of late stays.
            self._freed = now
            for name in segments(self.directory)[:-_LATE][: KEPT_S // 120]:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.directory}/{name}")  # noqa: PTH108
        self.problem = str(error)

    def _write(self, work: list[tuple[str, float, bytes] | None]) -> None:
        newest: bytes | None = None
        for one in work:
            if one is None:
                continue
            kind, at, data = one
            if kind == "state":
                newest = data
                continue
            self._turn(segment_name(at))
            write_all(self._handle, data)
        if self._handle >= 0:
            os.fdatasync(self._handle)
        if newest is not None:
            write_whole(self._state, newest, group=self._group)

    def _turn(self, name: str) -> None:
        if name == self._name and self._handle >= 0:
            return
        before = self._name
        self._shut()
        path = f"{self.directory}/{name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._handle = os.open(path, flags, 0o640)
        give(self._handle, self._group)
        self._name = name
        if os.fstat(self._handle).st_size:
            os.write(self._handle, b"\n")  # after a crash the last line may be torn
        trim(self.directory, now=self._clock())
        if before and before != name:
            self._closed(before)

    def _shut(self) -> None:
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                os.fdatasync(self._handle)
            os.close(self._handle)
            self._handle = -1
