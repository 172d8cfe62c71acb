"""Files of the guard, and those of the system that it reads."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

_READ = 1 << 20
"""Bytes at most of any file that is read; those of /proc and /sys are far smaller."""


class Trouble(Exception):  # noqa: N818 - said to who runs the guard by hand
    """What went wrong, with what to do next."""

    def __init__(self, message: str, *, next: str | None = None) -> None:  # noqa: A002 - as in every record
        super().__init__(message)
        self.next = next


def say(text: str) -> None:
    """A line in the guard's log; a full disk takes none, and that must not hurt."""
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%m-%d %H:%M:%S')} {text}\n".encode("utf-8", "replace"))


class Roots:
    """Where /proc and /sys are read. overlay: a directory whose files take the place of the system's, for
    tests and labs: OVERLAY/proc/meminfo is read instead of /proc/meminfo where it is there."""

    def __init__(self, overlay: str | None = None) -> None:
        self._overlay = overlay

    def path(self, path: str) -> str:
        """The file to open for an absolute path."""
        if self._overlay is not None:
            own = self._overlay + path
            if os.path.exists(own):  # noqa: PTH110 - asked some twenty times a second
                return own
        return path

    def read(self, path: str) -> str:
        """The text of a file. Raises OSError."""
        handle = os.open(self.path(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(handle, _READ).decode("utf-8", "replace")
        finally:
            os.close(handle)

    def names(self, path: str) -> list[str]:
        """What a directory holds, sorted; nothing where it is not there."""
        try:
            return sorted(os.listdir(self.path(path)))  # noqa: PTH208 - as above
        except OSError:
            return []


def write_whole(path: str, data: bytes, *, mode: int = 0o640, group: int | None = None) -> None:
    """Replace a file, whole or not at all, and have it on disk. group: may read it too. Raises OSError."""
    aside = f"{path}.{os.getpid()}.tmp"
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(handle, mode)
        give(handle, group)
        write_all(handle, data)
        os.fsync(handle)
    except OSError:
        os.close(handle)
        with contextlib.suppress(OSError):
            Path(aside).unlink()
        raise
    os.close(handle)
    Path(aside).replace(path)


def write_all(handle: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    while data:
        data = data[os.write(handle, data) :]


def give(handle: int, group: int | None) -> None:
    """Let a group have a file, as far as this process may."""
    if group is not None and os.geteuid() == 0:
        os.fchown(handle, -1, group)


def make_dir(path: str, *, group: int | None = None) -> None:
    """Make a directory that its owner may use and the group may read. Raises OSError."""
    Path(path).mkdir(mode=0o750, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        give(handle, group)
    finally:
        os.close(handle)


def read_json(path: str) -> Any:
    """The value in a JSON file, None where there is none that can be read.

    The guard is root and many of these files are a user's: a link of his is not followed, and a pipe not
    waited for.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        return json.loads(os.read(handle, _READ)) if stat.S_ISREG(os.fstat(handle).st_mode) else None
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(handle)


def put(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
