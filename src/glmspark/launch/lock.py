"""One start at a time: a lock that is held exactly as long as someone answers for the deployment.

It is an flock, so the kernel drops it when its last holder ends, however it ends. `glmspark up` takes it and
hands the open file to the supervisor; the ranks never have it. Whoever gets it may therefore take whatever
the record says is running for left over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from glmspark.config.files import advice, make_dir
from glmspark.errors import StateError

_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class Lock:
    """A held lock. `fileno` may be passed to a child, which then holds it too."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def fileno(self) -> int:
        """The open file that carries the lock."""
        if self._handle is None:
            raise ValueError("the lock was released")
        return self._handle

    def release(self) -> None:
        """Let go in this process; a child that was given the file still holds it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take(path: Path, *, wait: float = 0.0) -> Lock | None:
    """Take the lock at `path`, waiting at most `wait` seconds; None when someone else holds it.

    StateError where the file cannot be made.
    """
    end = time.monotonic() + wait
    while True:
        make_dir(path.parent)
        handle = _open(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(handle, path):
                return Lock(handle)
        except OSError as error:
            if error.errno not in _HELD:
                os.close(handle)
                raise StateError(
                    f"cannot lock {path}: {error.strerror}",
                    step=f"lock {path}",
                    seen=str(error),
                    next=advice(error, path) or "set GLMSPARK_STATE_DIR to a directory on a local disk",
                ) from error
            if time.monotonic() >= end:
                os.close(handle)
                return None
            time.sleep(0.02)
        os.close(handle)  # held by another, or of a directory that was removed meanwhile


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(
            f"cannot open {path}: {error.strerror}",
            step=f"lock {path}",
            seen=str(error),
            next=advice(error, path) or "set GLMSPARK_STATE_DIR to a directory that can be written",
        ) from error


def _is(handle: int, path: Path) -> bool:
    """Whether the open file is still the one at that path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def held(path: Path) -> bool:
    """Whether someone holds the lock now. A file that is not there, or is another user's, is not held."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in _HELD
        finally:
            os.close(handle)
    return False
