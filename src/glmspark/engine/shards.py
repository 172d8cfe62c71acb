"""A checkpoint's safetensors files as they lie on disk: which tensor, where, of which type and shape.

The format (huggingface/safetensors, "Format"): 8 bytes little-endian header length, a JSON object of that
length, then the tensors' bytes. Only headers are read here.
"""

from __future__ import annotations

import json
import os
import re
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000
"""The format's own limit for a header, in bytes."""

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
}  # fmt: skip
"""Bits of one element of the types that PyTorch has, by the format's names."""


class ShardError(RuntimeError):
    """A file of the checkpoint that is not what it should be; the message names it and says what was seen."""


class Stored(NamedTuple):
    """One tensor of a file. offset: of its first byte, from the start of the file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The byte after its last."""
        return self.offset + self.nbytes


def read_header(path: Path) -> list[Stored]:
    """The tensors of a safetensors file in the order of their bytes. A file without any gives an empty list.

    Raises ShardError for what is no whole safetensors file.
    """
    try:
        with path.open("rb", buffering=0) as file:
            # Nothing ahead of the header, and nothing of it stays in the page cache.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 10 or not 2 <= length <= min(size - 8, MAX_HEADER):
                raise ShardError(f"{path} is no safetensors file: {size} bytes, header of {length} stated")
            header = json.loads(file.read(length))
            os.posix_fadvise(file.fileno(), 0, 8 + length, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise ShardError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ShardError(f"{path} has a broken header: it is not JSON") from None
    if not isinstance(header, dict):
        raise ShardError(f"{path} has a broken header: it is not a JSON object")
    header.pop("__metadata__", None)
    found = sorted((_tensor(path, name, entry, 8 + length) for name, entry in header.items()), key=_place)
    if found and found[-1].end > size:
        raise ShardError(f"{path} is truncated: its tensors end at byte {found[-1].end}, it has {size}")
    return found


def _place(tensor: Stored) -> tuple[int, int]:
    return tensor.offset, tensor.nbytes


def _tensor(path: Path, name: str, entry: Any, data: int) -> Stored:
    try:
        dtype, shape = entry["dtype"], tuple(map(int, entry["shape"]))
        begin, end = map(int, entry["data_offsets"])
        bits = DTYPE_BITS[dtype]
    except (KeyError, TypeError, ValueError):
        raise ShardError(f"{path} has a broken header: tensor {name[:200]!r} is {str(entry)[:120]}") from None
    if min((begin, end, *shape)) < 0 or (end - begin) * 8 != prod(shape) * bits:
        raise ShardError(
            f"{path} has a broken header: tensor {name[:200]!r} has {end - begin} bytes, "
            f"{dtype} of shape {list(shape)} takes {prod(shape) * bits // 8}"
        )
    return Stored(name, path, dtype, shape, data + begin, end - begin)


def shard_files(directory: Path) -> list[Path]:
    """The files that hold a checkpoint's weights: those its index names, else every *.safetensors.

    Raises ShardError for an index that cannot be read or names a file that is not there.
    """
    index = directory / INDEX
    if not index.is_file():
        return sorted(directory.glob("*.safetensors"), key=_by_number)
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ShardError(f"{index} cannot be read: {error!r:.120}") from None
    for name in names:
        if not isinstance(name, str) or "/" in name or not (directory / name).is_file():
            raise ShardError(f"{index} names the file {str(name)[:200]!r}, which is not there")
    return sorted((directory / name for name in names), key=_by_number)


class PartOf(NamedTuple):
    """What an index says of a directory that holds one rank's part of a checkpoint (`glmspark fetch
    --only-needed`). of: the shards it is cut out of, with their size and header's SHA-256. experts: whether
    routed experts are the rank's own alone (EP). mtp: whether MTP layers are on the ranks that load them."""

    of: dict[str, list[Any]]
    experts: bool
    mtp: bool


def part_of(directory: Path) -> PartOf | None:
    """Of what a directory is a part; None where it holds all of its checkpoint."""
    try:
        said = json.loads((directory / INDEX).read_bytes())["metadata"]["glmspark"]
        return PartOf(dict(said["of"]), said["experts"] is True, said["mtp"] is True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _by_number(path: Path) -> list[int | str]:
    """model-2 before model-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def read_shards(directory: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint by name. Raises ShardError as `read_header` and `shard_files` do."""
    return {tensor.name: tensor for file in shard_files(directory) for tensor in read_header(file)}
