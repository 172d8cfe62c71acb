"""Reads pieces in parallel into few buffers, in order."""

from __future__ import annotations

import logging
import mmap
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from glmspark.engine.loader.choice import Choice
from glmspark.engine.loader.files import Mode, OpenFile
from glmspark.engine.loader.pieces import ALIGN, Piece, blocks_of

logger = logging.getLogger("vllm.glmspark.loader")

MIB = 2**20


@dataclass(frozen=True)
class Settings:
    """How to read. Sizes in bytes, multiples of ALIGN.

    threads: requests at once. block: of one request. piece: of one buffer. buffers: how many. mode: None lets
    the first pieces decide.
    """

    threads: int = 8
    block: int = 2 * MIB
    piece: int = 16 * MIB
    buffers: int = 8
    mode: Mode | None = None

    def __post_init__(self) -> None:
        if self.threads < 1 or self.buffers < 3:
            raise ValueError("the loader takes at least 1 thread and 3 buffers")
        for name in ("block", "piece"):
            size = getattr(self, name)
            if size < ALIGN or size % ALIGN:
                raise ValueError(f"{name} is {size} bytes; it is a positive multiple of {ALIGN}")


def anonymous_memory(size: int) -> memoryview:
    """A buffer of `size` bytes at a page's start, of huge pages where the kernel gives them."""
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class Buffer:
    """Memory for one piece. It is free again once nobody holds a view of it that was lent."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self._lent: list[weakref.ref[memoryview]] = []

    def lend(self, begin: int, end: int) -> memoryview:
        """A view of bytes [begin, end); the buffer is taken until it, and every tensor of it, is gone."""
        view = self.memory[begin:end]
        self._lent.append(weakref.ref(view))
        return view

    def free(self) -> bool:
        """Whether nobody holds a lent view any more."""
        self._lent = [reference for reference in self._lent if reference() is not None]
        return not self._lent


@dataclass
class Loaded:
    """A piece that has been read. Drop it, and what was lent of it, before asking for the next."""

    piece: Piece
    buffer: Buffer

    def view(self, begin: int, end: int) -> memoryview:
        """The file's bytes [begin, end), which must lie in the piece."""
        start = self.piece.aligned[0]
        return self.buffer.lend(begin - start, end - start)


@dataclass
class _Pending:
    piece: Piece
    buffer: Buffer
    reads: list[Future[float]]
    file: OpenFile
    mode: Mode


def _timed(file: OpenFile, view: memoryview, begin: int, needed: int, mode: Mode) -> float:
    """Read, and say how many seconds it took."""
    began = time.monotonic()
    file.read(view, begin, needed, mode)
    return time.monotonic() - began


class Reader:
    """Reads pieces ahead of their consumer. Use `loaded()` once; it closes everything when it ends."""

    def __init__(
        self,
        pieces: Iterable[Piece],
        settings: Settings,
        memory: Callable[[int], memoryview] = anonymous_memory,
        open_file: Callable[[Path], OpenFile] = OpenFile,
    ) -> None:
        self.pieces = deque(pieces)
        self.settings = settings
        self.choice = Choice(settings.mode, settings.threads)
        self._memory = memory
        self._open_file = open_file
        self._buffers: list[Buffer] = []
        self._pending: deque[_Pending] = deque()
        self._files: dict[Path, OpenFile] = {}
        self._left: dict[Path, int] = {}
        for piece in self.pieces:
            self._left[piece.file] = self._left.get(piece.file, 0) + 1

    def loaded(self) -> Iterator[Loaded]:
        """The pieces in order. Raises ReadError, naming file and offset, where one cannot be read."""
        self._pool = ThreadPoolExecutor(self.settings.threads, thread_name_prefix="glmspark-read")
        try:
            while self.pieces or self._pending:
                self._read_ahead()
                yield self._next()
        finally:
            for pending in self._pending:
                for read in pending.reads:
                    read.cancel()
            self._pool.shutdown(wait=True)
            for file in self._files.values():
                file.close()

    def _read_ahead(self) -> None:
        while self.pieces and (not self._pending or self._spare()):
            self._submit()

    def _spare(self) -> bool:
        return len(self._buffers) < self.settings.buffers or any(map(self._idle, self._buffers))

    def _idle(self, buffer: Buffer) -> bool:
        return buffer.free() and all(pending.buffer is not buffer for pending in self._pending)

    def _buffer(self) -> Buffer:
        """One that is idle. Where the consumer holds all of them, which no loader of vLLM does, another."""
        for buffer in self._buffers:
            if self._idle(buffer):
                return buffer
        if len(self._buffers) == self.settings.buffers:
            logger.warning("the model keeps tensors that it was handed: more memory is taken for reading")
        self._buffers.append(Buffer(self._memory(self.settings.piece + 2 * ALIGN)))
        return self._buffers[-1]

    def _submit(self) -> None:
        piece = self.pieces.popleft()
        buffer = self._buffer()
        file = self._files.get(piece.file)
        if file is None:
            file = self._files[piece.file] = self._open_file(piece.file)
        if not file.direct:
            self.choice.only_buffered()
        mode = self.choice.next()
        start, _ = piece.aligned
        reads = [
            self._pool.submit(
                _timed,
                file,
                buffer.memory[begin - start : end - start],
                begin,
                min(end, piece.end) - begin,
                mode,
            )
            for begin, end in blocks_of(piece, self.settings.block)
        ]
        self._pending.append(_Pending(piece, buffer, reads, file, mode))

    def _next(self) -> Loaded:
        pending = self._pending.popleft()
        piece = pending.piece
        self.choice.add(piece.nbytes, sum(read.result() for read in pending.reads))
        if pending.mode is Mode.BUFFERED or not pending.file.direct:
            start, end = piece.aligned
            pending.file.forget(start, end - start)
        self._left[piece.file] -= 1
        if self._left[piece.file] == 0:
            self._files.pop(piece.file).close()
        return Loaded(piece, pending.buffer)
