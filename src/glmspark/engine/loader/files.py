"""One file being read: past the page cache, or through it without leaving anything there."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from glmspark.engine.loader.pieces import ALIGN

RWF_DONTCACHE: Final = 0x80
"""preadv2's flag for a read whose pages leave the cache with it (Linux 6.14, ext4, xfs and btrfs)."""

_REFUSED: Final = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY, errno.EFAULT}
"""Also where the kernel cannot pin the buffer's pages for a direct read (EFAULT)."""

Preadv = Callable[[int, Sequence[memoryview], int, int], int]


class Mode(StrEnum):
    """How a file is read."""

    DIRECT = "O_DIRECT"
    BUFFERED = "buffered"


class ReadError(RuntimeError):
    """Bytes of a checkpoint that could not be read; the message names file, offset and cause."""


def forget_file(path: Path) -> None:
    """Drop what the page cache holds of a file that nobody has mapped."""
    with contextlib.suppress(OSError):  # it will be missed when it is read, if it must be
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


class OpenFile:
    """A file open for reading in both ways. Safe to use from several threads; close it when they are done.

    `preadv` can be replaced by tests that want a disk to fail.
    """

    def __init__(self, path: Path, preadv: Preadv = os.preadv) -> None:
        self.path = path
        self._preadv = preadv
        self._flags = RWF_DONTCACHE
        try:
            self._buffered = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ReadError(f"{path} cannot be opened: {error.strerror or error}") from None
        try:
            self._direct: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:  # tmpfs and some network file systems have none; any other fault shows in reading
            self._direct = None

    @property
    def direct(self) -> bool:
        """Whether the file system takes O_DIRECT, as far as is known."""
        return self._direct is not None

    def read(self, view: memoryview, begin: int, needed: int, mode: Mode) -> None:
        """Fill the first `needed` bytes of `view` from offset `begin`, both aligned to ALIGN.

        More may be read, up to all of `view`. O_DIRECT where it is refused becomes a buffered read. Raises
        ReadError where the file ends before, or the disk fails.
        """
        done = 0
        while done < needed:
            direct = mode is Mode.DIRECT and self._direct is not None and done % ALIGN == 0
            try:
                count = self._once(view[done:], begin + done, direct)
            except OSError as error:
                if direct and error.errno in _REFUSED:
                    self._direct_refused()
                    continue
                raise ReadError(
                    f"{self.path}: reading {needed - done} bytes at offset {begin + done} failed: "
                    f"{error.strerror or error}"
                ) from error
            if count == 0:
                raise ReadError(
                    f"{self.path} ends at byte {begin + done}, {needed - done} bytes before its header says"
                )
            done += count  # a short read that ends within a block goes on through the page cache

    def _once(self, view: memoryview, offset: int, direct: bool) -> int:
        if direct and self._direct is not None:
            return self._preadv(self._direct, [view], offset, 0)
        if self._flags:
            try:
                return self._preadv(self._buffered, [view], offset, self._flags)
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                self._flags = 0
        return self._preadv(self._buffered, [view], offset, 0)

    def _direct_refused(self) -> None:
        """The descriptor stays open: another thread may be reading from it."""
        self._refused, self._direct = self._direct, None

    _refused: int | None = None

    def forget(self, begin: int = 0, length: int = 0) -> None:
        """Drop the range (all, by default) from the page cache. Nothing has it mapped, so this works at once.

        Pages that another thread is just reading stay; the file's last `forget` takes them.
        """
        with contextlib.suppress(OSError):  # advice: a file system may not take it
            os.posix_fadvise(self._buffered, begin, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Forget the file's pages and close it."""
        self.forget()
        for descriptor in (self._buffered, self._direct, self._refused):
            if descriptor is not None:
                os.close(descriptor)
