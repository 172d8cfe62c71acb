"""A file on its way: what has been verified of it, kept in a journal, and given to others at once.

It is written aside as `.NAME.part` with a journal `.NAME.journal` of verified chunks, and renamed when all of
it is there. After a crash the journal is not believed: each chunk it names is hashed again.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from .digest import CHUNK, SIZE, chunks, digest, root, span
from .parts import Part, Record

_FLUSH = 64 << 20
"""Bytes after which what came is sent to the disk: else all of it waits for the end, in memory that the
engine wants."""
_FLUSHING = ThreadPoolExecutor(2, "flush")
_RECORD = struct.Struct(f"<I{SIZE}s")


class TransferError(Exception):
    """Something that ends the transfer. step, next: for the error people see."""

    def __init__(self, message: str, *, step: str = "spread the weights", advice: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.advice = advice


class File:
    """One file of the model on this node. keep: whether it is stored here; a source keeps what it has."""

    def __init__(
        self, directory: Path, name: str, size: int, algorithm: str, expected: list[bytes] | None
    ) -> None:
        self.name = name
        self.size = size
        self.algorithm = algorithm
        self.path = directory / name
        self.part_path = directory / f".{name}.part"
        self.journal = directory / f".{name}.journal"
        self.other = directory / f".{name}.other"
        self.part: Part | None = None
        self.record: Record | None = None
        self.expected = expected
        self.digests: list[bytes | None] = [None] * chunks(size)
        self.complete = False
        self.proven = False
        self.failed: str | None = None
        self.received = 0
        self._counted = 0
        self._handle: int | None = None
        self._log: int | None = None
        self._wanted: set[int] | None = None
        self._unflushed = 0
        self._flushed: Future[None] | None = None
        self._on_asked: Callable[[], None] | None = None
        self._changed = threading.Condition()

    def keep_part(self, part: Part, on_asked: Callable[[], None] | None) -> None:
        """Keep a part of it only. on_asked: where all of it is passed on to others: what is done when one
        asks for it; None where it is not."""
        self.part = part
        self._on_asked = on_asked
        if on_asked is None:
            self._wanted = part.wanted()

    # -- what is there already -----------------------------------------------------------------------------

    def hash_existing(self, path: Path) -> list[bytes] | None:
        """The chunk hashes of a whole file; None where it is not there or of another size."""
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size != self.size:
                    return None
                buffer = bytearray(CHUNK)
                found = []
                for index in range(len(self.digests)):
                    begin, end = span(self.size, index)
                    view = memoryview(buffer)[: end - begin]
                    if file.readinto(view) != end - begin:
                        return None
                    found.append(digest(self.algorithm, view))
                return found
        except OSError:
            return None

    def adopt(self, digests: list[bytes]) -> None:
        """The file at its place is whole; whoever calls has verified it. What a kill left beside it goes."""
        for left in (self.part_path, self.journal, self.other):
            left.unlink(missing_ok=True)
        with self._changed:
            self.part, self._wanted = None, None
            self.digests = list(digests)
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self.complete = self.proven = True
            self._changed.notify_all()

    def offer(self) -> None:
        """As a source: the file at its place counts, and is hashed as it is read."""
        with self._changed:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(self._handle).st_size != self.size:
                raise TransferError(f"{self.path} has not the size it had a moment ago")
            if self.expected is not None:
                self.digests = list(self.expected)
            self.complete = self.proven = True
            self._changed.notify_all()

    def begin(self) -> None:
        """Open the part file and take up what its journal says, hashed again."""
        self._handle = os.open(self.part_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._log = os.open(self.journal, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o644)
        noted = os.pread(self._log, len(self.digests) * _RECORD.size * 2, 0)
        usable = len(noted) - len(noted) % _RECORD.size
        os.ftruncate(self._log, usable)
        os.ftruncate(self._handle, self.size)
        for index, said in _RECORD.iter_unpack(noted[:usable]):
            if index >= len(self.digests) or self.digests[index] is not None:
                continue
            if self.expected is not None and said != self.expected[index]:
                continue
            begin, end = span(self.size, index)
            if digest(self.algorithm, os.pread(self._handle, end - begin, begin)) == said:
                self.digests[index] = said
                self._counted += end - begin

    def take_over(self, digests: list[bytes], wanted: list[bytes]) -> None:
        """A file at its place with some wrong chunks becomes the part file; the right ones stay."""
        if self.path.is_symlink():
            raise TransferError(
                f"{self.path} is a link to a file that is damaged",
                advice=f"remove {self.path.resolve()} and {self.path}, then fetch again",
            )
        self.path.rename(self.part_path)
        with self.journal.open("wb") as file:
            for index, (mine, theirs) in enumerate(zip(digests, wanted, strict=True)):
                if mine == theirs:
                    file.write(_RECORD.pack(index, mine))

    # -- as it comes ---------------------------------------------------------------------------------------

    def missing(self) -> list[int]:
        """Chunks that are wanted and not verified yet."""
        wanted = range(len(self.digests)) if self._wanted is None else sorted(self._wanted)
        return [index for index in wanted if self.digests[index] is None]

    @property
    def needed(self) -> int:
        """Bytes that are wanted of it: whole chunks."""
        if self._wanted is None:
            return self.size
        return sum(end - begin for begin, end in (span(self.size, index) for index in self._wanted))

    @property
    def verified(self) -> int:
        """Bytes verified."""
        return self.needed if self.complete or self.settled else self._counted

    @property
    def hashed(self) -> int:
        """Bytes of which the hash is known."""
        spans = (span(self.size, index) for index, one in enumerate(self.digests) if one is not None)
        return sum(end - begin for begin, end in spans)

    @property
    def settled(self) -> bool:
        """Whether the part of it that is kept is at its place."""
        return self.record is not None

    @property
    def handle(self) -> int:
        """The open file that it is read from."""
        assert self._handle is not None  # noqa: S101 - begun
        return self._handle

    def put(self, index: int, at: int, data: memoryview) -> None:
        """Some bytes of a chunk, from `at` within it: kept, but not counted before `accept`.

        Raises OSError, as of a full disk.
        """
        assert self._handle is not None  # noqa: S101 - begun
        place = span(self.size, index)[0] + at
        while data:
            done = os.pwrite(self._handle, data, place)
            place += done
            data = data[done:]

    def accept(self, index: int, found: bytes, said: bytes) -> bool:
        """A whole chunk has been put, with the hash `found`; whether that is what was `said` and expected."""
        if found != said or (self.expected is not None and found != self.expected[index]):
            return False
        begin, end = span(self.size, index)
        self._note(index, found)
        self.received += end - begin
        return True

    def reuse(self, index: int, data: bytes) -> None:
        """A whole chunk that was here already, in another file; wrong data is left alone."""
        found = digest(self.algorithm, data)
        if self.expected is None or found == self.expected[index]:
            self.put(index, 0, memoryview(data))
            self._note(index, found)

    def _note(self, index: int, found: bytes) -> None:
        assert self._log is not None  # noqa: S101 - begun
        os.write(self._log, _RECORD.pack(index, found))
        begin, end = span(self.size, index)
        with self._changed:
            self.digests[index] = found
            self._counted += end - begin
            self._changed.notify_all()
        self._unflushed += end - begin
        if self._unflushed >= _FLUSH and (self._flushed is None or self._flushed.done()):
            self._flush()
            self._unflushed = 0
            self._flushed = _FLUSHING.submit(os.fdatasync, self.handle)

    def _flush(self) -> None:
        """Wait for what is on its way to the disk. Raises OSError, as of a full one."""
        if self._flushed is not None:
            self._flushed.result()
            self._flushed = None

    def prove(self) -> None:
        """All chunks are there, and whoever gave them says that the whole is right: pass that on."""
        with self._changed:
            self.proven = True
            self._changed.notify_all()

    def finish(self) -> None:
        """All chunks are there: sync, rename, forget the journal."""
        self._flush()
        os.fsync(self.handle)
        self.part_path.rename(self.path)
        self._sync_directory()
        self.journal.unlink(missing_ok=True)
        self.other.unlink(missing_ok=True)
        if self._log is not None:
            os.close(self._log)
            self._log = None
        with self._changed:
            self.complete = True
            self._changed.notify_all()

    def settle(self, aside: Path | None, record: Record) -> None:
        """The part that is kept lies in `aside`, or at its place already (None). What it was cut out of goes,
        unless that is passed on."""
        if aside is not None and self.part is not None and self.part.spans:
            if self.path.is_symlink():
                self.path.unlink()
            aside.rename(self.path)
            self._sync_directory()
        self.other.unlink(missing_ok=True)
        with self._changed:
            self.record = record if self.part is not None and self.part.spans else None
            self._changed.notify_all()
        if self._on_asked is None:
            self._forget()
            self.complete = True

    def drop(self) -> None:
        """Let go of what was only passed on."""
        if self._on_asked is None or self.part is None:
            return
        with self._changed:
            self.proven = False
            self.digests = [None] * len(self.digests)
            self._counted = 0
        self._forget()

    def _forget(self) -> None:
        self.close()
        for left in (self.part_path, self.journal):
            left.unlink(missing_ok=True)

    def asked(self) -> bool:
        """Somebody wants it: whether it can be given, sooner or later."""
        if self._on_asked is not None and self.part is not None:
            if not self.proven:
                self._on_asked()
            return True
        return self.part is None

    def _sync_directory(self) -> None:
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def fail(self, reason: str) -> None:
        """Whoever waits for a chunk waits in vain."""
        with self._changed:
            self.failed = reason
            self._changed.notify_all()

    def close(self) -> None:
        """Let go of the files."""
        with contextlib.suppress(OSError):
            self._flush()
        for handle in (self._handle, self._log):
            if handle is not None:
                with contextlib.suppress(OSError):
                    os.close(handle)
        self._handle = self._log = None

    # -- for others ----------------------------------------------------------------------------------------

    def wait(self, index: int | None, seconds: float) -> bool:
        """Whether a chunk (None: all, proven) can be given after at most so long.

        Raises TransferError where it never will.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._there(index), seconds)
            if self.failed is not None and not self.proven:
                raise TransferError(self.failed)
            return self._there(index)

    def _there(self, index: int | None) -> bool:
        if self.proven or self.failed is not None:
            return True
        return index is not None and self.digests[index] is not None

    def read(self, index: int, buffer: bytearray) -> tuple[memoryview, bytes]:
        """A chunk's bytes, in `buffer`, and its hash: as known, or as read for the first time at a source."""
        begin, end = span(self.size, index)
        view = memoryview(buffer)[: end - begin]
        assert self._handle is not None  # noqa: S101 - there, as `wait` said
        at = 0
        while at < len(view):
            try:
                done = os.preadv(self._handle, [view[at:]], begin + at)
            except OSError as error:
                raise TransferError(
                    f"{self.path} cannot be read: {error.strerror}",
                    step="read the weights",
                    advice="see that node's kernel log (dmesg): its disk may be failing",
                ) from None
            if done == 0:
                raise TransferError(f"{self.path} became shorter while it was read")
            at += done
        known = self.digests[index]
        if known is None:
            known = self.digests[index] = digest(self.algorithm, view)
        return view, known

    def all_digests(self) -> list[bytes]:
        """Every chunk's hash; a source reads what it has not read yet. Only of a complete file."""
        buffer = bytearray(CHUNK)
        return [one if one is not None else self.read(i, buffer)[1] for i, one in enumerate(self.digests)]

    def root(self) -> bytes:
        """The root of its tree."""
        return root(self.algorithm, self.size, self.all_digests())
