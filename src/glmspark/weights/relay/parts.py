"""A shard of which a node keeps some tensors: cut out of the original, which is what was verified.

What is kept is a whole safetensors file: a header of its own, then the tensors' bytes in their old order. The
hashes beside it say of which original it is a part, and where each of its bytes lay there: with another
layout the chunks that lie in it entirely are taken from it, and only the others come over the link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .digest import CHUNK, chunks, digest, span

Record = dict[str, Any]


class Part:
    """What is kept of a file. header: the kept file's own, with its length. spans: bytes [begin, end) of the
    original that follow it, in rising order and none beside the other; without any nothing is kept."""

    def __init__(self, header: str, spans: Sequence[Sequence[int]]) -> None:
        raw = header.encode()
        self.header = len(raw).to_bytes(8, "little") + raw if spans else b""
        self.spans = tuple((int(begin), int(end)) for begin, end in spans)

    @property
    def size(self) -> int:
        """Bytes of what is kept."""
        return len(self.header) + sum(end - begin for begin, end in self.spans)

    def wanted(self) -> set[int]:
        """The original's chunks of which anything is kept."""
        return {index for begin, end in self.spans for index in range(begin // CHUNK, -(-end // CHUNK))}


def cut(source: int, path: Path, part: Part, algorithm: str) -> list[bytes]:
    """Write the part of the original (a file descriptor) to `path`, synced; its chunks' hashes.

    Raises OSError, as of a full disk.
    """
    buffer, filled = bytearray(CHUNK), 0
    found: list[bytes] = []
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def flush() -> None:
        nonlocal filled
        view = memoryview(buffer)[:filled]
        found.append(digest(algorithm, view))
        while view:
            view = view[os.write(handle, view) :]
        filled = 0

    try:
        for at in range(0, len(part.header), CHUNK):
            piece = part.header[at : at + CHUNK]
            while piece:
                taken = piece[: CHUNK - filled]
                buffer[filled : filled + len(taken)] = taken
                filled, piece = filled + len(taken), piece[len(taken) :]
                if filled == CHUNK:
                    flush()
        for begin, end in part.spans:
            place = begin
            while place < end:
                view = memoryview(buffer)[filled : min(CHUNK, filled + end - place)]
                done = os.preadv(source, [view], place)
                if not done:
                    raise OSError(5, "ends before what is to be kept of it", str(path))
                place, filled = place + done, filled + done
                if filled == CHUNK:
                    flush()
        if filled:
            flush()
        os.fsync(handle)
    finally:
        os.close(handle)
    return found


def origin(part: Part, size: int, root: bytes, identity: str | None) -> Record:
    """What the hashes say of a part's original. identity: the hub's hash of it, if that is known."""
    return {
        "size": size,
        "root": root.hex(),
        "identity": identity,
        "header": len(part.header),
        "spans": [list(one) for one in part.spans],
    }


def record_of(known: Record, path: Path, size: int) -> Record | None:
    """The record of a file that is there as a part of an original of `size` bytes; None for anything else."""
    entry = known.get("files", {}).get(path.name)
    try:
        of = entry["of"]
        spans = [(int(begin), int(end)) for begin, end in of["spans"]]
        whole = len(bytes.fromhex(entry["digests"])) == 32 * chunks(entry["size"])
        kept = int(of["header"]) + sum(end - begin for begin, end in spans)
        there = path.stat().st_size == entry["size"] == kept
    except (KeyError, TypeError, ValueError, OSError):
        return None
    return dict(entry) if whole and there and of["size"] == size else None


def damaged(record: Record, path: Path, algorithm: str) -> set[int]:
    """The part's chunks that are not what they were. Raises OSError where it cannot be read."""
    raw = bytes.fromhex(record["digests"])
    wrong = set()
    buffer = bytearray(CHUNK)
    with path.open("rb", buffering=0) as file:
        for index in range(chunks(record["size"])):
            begin, end = span(record["size"], index)
            view, at = memoryview(buffer)[: end - begin], 0
            while at < len(view) and (done := file.readinto(view[at:])):
                at += done
            if digest(algorithm, view[:at]) != raw[index * 32 : index * 32 + 32]:
                wrong.add(index)
    return wrong


def is_kept(record: Record, path: Path, part: Part) -> bool:
    """Whether the file is just that part."""
    of = record["of"]
    same = [list(one) for one in part.spans] == of["spans"] and of["header"] == len(part.header)
    if not same:
        return False
    with path.open("rb") as file:
        return file.read(len(part.header)) == part.header


def chunks_inside(record: Record, wrong: set[int]) -> Iterator[tuple[int, int, int]]:
    """The original's chunks that lie whole in a part, without its damaged ones: (index, where, bytes)."""
    of = record["of"]
    size, place = int(of["size"]), int(of["header"])
    for begin, end in of["spans"]:
        for index in range(-(-begin // CHUNK), -(-end // CHUNK)):
            first, last = span(size, index)
            if last > end:
                break
            where = place + first - begin
            if not wrong & set(range(where // CHUNK, -(-(where + last - first) // CHUNK))):
                yield index, where, last - first
        place += end - begin
