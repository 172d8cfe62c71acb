"""What to read, in which order: neighbouring tensors together, large ones in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from glmspark.engine.shards import Stored

ALIGN = 4096
"""O_DIRECT wants file offset, length and memory in multiples of the logical block, 512 or 4,096 bytes."""

GAP = 256 * 2**10
"""Bytes that nobody asked for are read along where skipping them would cost another request: at 2 GB/s this
many take 0.13 ms, about what a request to an NVMe disk takes."""


@dataclass(frozen=True)
class Piece:
    """Bytes [begin, end) of a file, read as one. They hold `tensors` whole, or a part of the only one."""

    file: Path
    begin: int
    end: int
    tensors: tuple[Stored, ...]

    @property
    def nbytes(self) -> int:
        """Bytes from the first wanted one to the last."""
        return self.end - self.begin

    @property
    def aligned(self) -> tuple[int, int]:
        """The same range, widened to whole blocks. Its end may lie past the file's."""
        return self.begin // ALIGN * ALIGN, -(-self.end // ALIGN) * ALIGN

    @property
    def partial(self) -> bool:
        """Whether this is a part of one tensor that is too large for a buffer."""
        first = self.tensors[0]
        return len(self.tensors) == 1 and (first.offset < self.begin or first.end > self.end)


def pieces_of(wanted: Iterable[Stored], limit: int, gap: int = GAP) -> Iterator[Piece]:
    """The pieces that hold all of `wanted`, at most `limit` bytes each (a multiple of ALIGN).

    Files come in the order given, tensors in the order of their bytes. Raises ValueError for another limit.
    """
    if limit < ALIGN or limit % ALIGN:
        raise ValueError(f"a piece is a positive multiple of {ALIGN} bytes, not {limit}")
    for file, group in groupby(wanted, key=lambda tensor: tensor.file):
        together: list[Stored] = []
        for tensor in sorted(group, key=lambda item: (item.offset, item.nbytes)):
            if together and (
                tensor.end - together[0].offset > limit or tensor.offset - together[-1].end > gap
            ):
                yield _whole(file, together)
                together = []
            if tensor.nbytes > limit:
                yield from _parts(file, tensor, limit)
            else:
                together.append(tensor)
        if together:
            yield _whole(file, together)


def _whole(file: Path, tensors: list[Stored]) -> Piece:
    return Piece(file, tensors[0].offset, max(tensor.end for tensor in tensors), tuple(tensors))


def _parts(file: Path, tensor: Stored, limit: int) -> Iterator[Piece]:
    """Cut at whole blocks, so that no block is read twice."""
    begin = tensor.offset
    while begin < tensor.end:
        end = min((begin + limit) // ALIGN * ALIGN, tensor.end)
        yield Piece(file, begin, end, (tensor,))
        begin = end


def blocks_of(piece: Piece, block: int) -> Iterator[tuple[int, int]]:
    """The piece's aligned range in requests of `block` bytes: (begin, end) each."""
    begin, end = piece.aligned
    for start in range(begin, end, block):
        yield start, min(start + block, end)
