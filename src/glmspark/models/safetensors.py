"""The header of a safetensors file, read without trusting it and without its data.

The format (huggingface/safetensors, "Format"): 8 bytes little-endian header length, a JSON object of that
length, then the data; the tensors' byte ranges cover the data without holes or overlaps. The library's own
reader would map the whole file and needs torch for some types; a plan needs only names, types and shapes.
"""

from __future__ import annotations

import json
import os
import stat
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from glmspark.models.errors import CheckpointError

__all__ = [
    "DTYPE_BITS",
    "MAX_HEADER",
    "TensorInfo",
    "check_layout",
    "header_length",
    "parse_header",
    "read_header",
]

MAX_HEADER = 100_000_000
"""The format's own limit for a header, in bytes."""

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of one element, by the format's type names."""

_MAX_DIMS = 16
_LARGEST = 2**53


class TensorInfo(NamedTuple):
    """One tensor of a shard. begin, end: its bytes, counted from the start of the shard's data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """Number of elements as stored (packed formats store several weights in one)."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.end - self.begin


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file by name.

    Raises CheckpointError for anything that is not a whole, well-formed file. Reads at most the header, which
    is bounded by the file's size and by MAX_HEADER before anything is allocated.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # never waits on a pipe
    except OSError as error:
        raise _broken(path, *_cannot_open(path, error)) from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise _broken(path, "is not a regular file")
    size = status.st_size
    with os.fdopen(handle, "rb") as file:
        prefix = file.read(8)
        length = header_length(prefix, size, path)
        try:
            raw = file.read(length)
        except OSError as error:
            raise _broken(path, f"cannot be read: {error.strerror or error}") from None
    tensors = parse_header(raw, path)
    check_layout(tensors, size - 8 - length, path)
    return tensors


def header_length(prefix: bytes, size: int, path: Path) -> int:
    """The header's length in bytes, from the first eight bytes of a file of `size` bytes.

    Raises CheckpointError where it cannot be one. path is the file's name in errors.
    """
    if size == 0:
        raise _broken(path, "is empty (0 bytes): a copy or download broke off")
    if prefix.startswith(b"version "):
        raise _broken(
            path, "is a Git LFS pointer, not the weights", "run `git lfs pull`, or download the files"
        )
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > size - 8 or length < 2:
        raise _broken(path, f"is truncated or not safetensors: {size} bytes, header of {length} stated")
    if length > MAX_HEADER:
        raise _broken(path, f"states a header of {length} bytes; the format allows {MAX_HEADER}")
    return length


def parse_header(raw: bytes, path: Path) -> dict[str, TensorInfo]:
    """The tensors in a header. Raises CheckpointError for anything that is not one.

    JSON grows when it is parsed, nested lists most; a header that has more of them, or of commas, than
    tensors could use is refused unparsed.
    """
    if raw.count(b"[") + raw.count(b"{") > len(raw) // 12 + 64 or raw.count(b",") > len(raw) // 3 + 64:
        raise _broken(path, "has a broken header: it is not JSON of tensors, but of lists")
    try:
        header = json.loads(raw, object_pairs_hook=_no_repeats)
    except _RepeatedError as error:
        raise _broken(path, f"has a broken header: {error} is given twice") from None
    except (ValueError, RecursionError):
        raise _broken(path, "has a broken header: it is not JSON") from None
    if not isinstance(header, dict):
        raise _broken(path, "has a broken header: it is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _tensor(name, entry, path) for name, entry in header.items()}


class _RepeatedError(Exception):
    pass


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedError(repr(key[:100]))
            seen.add(key)
    return found


def _tensor(name: str, entry: object, path: Path) -> TensorInfo:
    def broken(reason: str) -> CheckpointError:
        return _broken(path, f"has a broken header: tensor {name[:200]!r} {reason}")

    if not isinstance(entry, dict):
        raise broken("is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise broken(f"has the unknown type {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMS or not all(_is_size(n) for n in shape):
        raise broken("has an impossible shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(n) for n in offsets):
        raise broken("has impossible offsets")
    begin, end = offsets
    bits = prod(shape) * DTYPE_BITS[dtype]
    if end - begin != bits // 8 or bits % 8:
        raise broken(f"has {end - begin} bytes; {dtype} of shape {shape} takes {bits / 8:g}")
    return TensorInfo(dtype, tuple(shape), begin, end)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def check_layout(tensors: dict[str, TensorInfo], data: int, path: Path) -> None:
    """Raises CheckpointError unless the tensors cover `data` bytes without overlap, hole or rest."""
    position, last = 0, ""
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin < position:
            raise _broken(path, f"has overlapping tensors: {last[:200]!r} and {name[:200]!r}")
        if info.begin > position:
            raise _broken(path, f"has a hole of {info.begin - position} bytes before {name[:200]!r}")
        position, last = info.end, name
    if position > data:
        raise _broken(path, f"is truncated: {position - data} of {position} bytes of weights are missing")
    if position < data:
        raise _broken(path, f"has {data - position} bytes after its last tensor")


def _cannot_open(path: Path, error: OSError) -> tuple[str, str | None]:
    if path.is_symlink() and not path.exists():
        target = path.readlink()
        return (
            f"is a link to {target}, which does not exist",
            "copy the link's target too (rsync -L, cp -L), or download the file again",
        )
    if isinstance(error, FileNotFoundError):
        return "does not exist", None
    return f"cannot be read: {error.strerror or error}", None


def _broken(path: Path, reason: str, advice: str | None = None) -> CheckpointError:
    return CheckpointError(
        f"{path} {reason}",
        step="read the weights' headers",
        next=advice or f"copy or download {path.name} again",
    )
