"""Where a checkpoint's bytes come from: a directory, or something else that can be read in pieces."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from glmspark.config.paths import expand
from glmspark.models.errors import CheckpointError

__all__ = ["CheckpointFiles", "Entry", "LocalFiles", "Span"]

Span = tuple[int, int]
"""Bytes [begin, end) of a file."""


@dataclass(frozen=True)
class Entry:
    """A file of a checkpoint. size: bytes. wrong: why it cannot be read, e.g. a link that leads nowhere."""

    size: int
    wrong: str | None = None


class CheckpointFiles(Protocol):
    """The files of one checkpoint, readable in pieces."""

    where: str
    """What people call it: a directory or hf:org/name@revision."""

    def entries(self) -> Mapping[str, Entry]:
        """Every file, by name."""

    def read(self, name: str, spans: Sequence[Span]) -> list[bytes]:
        """These bytes of a file. Raises CheckpointError where they cannot be had, all of them."""


class LocalFiles:
    """A directory. Nothing is followed out of it but links to files; nothing is waited for, as on a pipe.

    Raises CheckpointError where it is no directory that can be listed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.root = expand(directory)
        self.where = str(self.root)
        try:
            names = sorted(path.name for path in self.root.iterdir())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CheckpointError(
                f"cannot look into {self.root}: {reason}",
                step="find the checkpoint",
                next="name a directory with a config.json, or hf:org/name@revision",
            ) from None
        self._entries = {name: entry for name in names if (entry := self._entry(name)) is not None}

    def _entry(self, name: str) -> Entry | None:
        path = self.root / name
        try:
            status = path.stat()
        except OSError as error:
            if path.is_symlink():
                return Entry(0, f"is a link to {path.readlink()}, which does not exist")
            return Entry(0, f"cannot be read: {error.strerror}")
        if stat.S_ISREG(status.st_mode):
            return Entry(status.st_size)
        return None if stat.S_ISDIR(status.st_mode) else Entry(0, "is not a regular file")

    def entries(self) -> Mapping[str, Entry]:
        """Every file and link, by name."""
        return self._entries

    def read(self, name: str, spans: Sequence[Span]) -> list[bytes]:
        """These bytes of a file; each span is at most as long as the file."""
        path = self.root / name
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                found = [os.pread(handle, max(end - begin, 0), begin) for begin, end in spans]
            finally:
                os.close(handle)
        except (OSError, ValueError, OverflowError) as error:
            raise _unread(path, getattr(error, "strerror", None) or str(error)) from None
        if any(len(data) != end - begin for data, (begin, end) in zip(found, spans, strict=True)):
            raise _unread(path, "it ends before what it says it holds")
        return found


def _unread(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read: {reason}",
        step="read the checkpoint",
        next=f"copy or download {path.name} again",
    )
