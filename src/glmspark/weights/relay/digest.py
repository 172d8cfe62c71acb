"""Hashes of chunks and the Merkle tree over them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

CHUNK = 4 << 20
"""Bytes of a chunk: what is hashed, passed on and taken up again as one."""
SIZE = 32

_FOUND: dict[str, Callable[[], Any]] = {"blake2b": functools.partial(hashlib.blake2b, digest_size=SIZE)}
# The system's Python of a node has the standard library's hash only.
with contextlib.suppress(ImportError):
    import blake3

    _FOUND["blake3"] = blake3.blake3

ALGORITHMS = tuple(name for name in ("blake3", "blake2b") if name in _FOUND)
"""What this Python has, the faster first."""


def new(algorithm: str) -> Any:
    """A hasher with update and digest. KeyError for an algorithm that this Python does not have."""
    return _FOUND[algorithm]()


def digest(algorithm: str, *parts: bytes | bytearray | memoryview) -> bytes:
    """The hash of parts joined, 32 bytes."""
    hasher = new(algorithm)
    for part in parts:
        hasher.update(part)
    return bytes(hasher.digest())


def root(algorithm: str, size: int, digests: Sequence[bytes]) -> bytes:
    """The root of a file's tree: pairs hashed until one is left, an odd one as it is; with the size."""
    level = list(digests) or [digest(algorithm, b"")]
    while len(level) > 1:
        pairs = [digest(algorithm, b"\x01", *level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) & ~1 :]
    return digest(algorithm, b"\x02", size.to_bytes(8, "little"), level[0])


def chunks(size: int) -> int:
    """Number of chunks of a file."""
    return -(-size // CHUNK)


def span(size: int, index: int) -> tuple[int, int]:
    """Where a chunk lies: [begin, end)."""
    return index * CHUNK, min((index + 1) * CHUNK, size)
