"""Small safetensors files for tests: real bytes, whatever their header's length."""

from __future__ import annotations

import json
import random
from pathlib import Path

SIZES = {"BF16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1, "I64": 8}


def write_shard(
    path: Path, tensors: dict[str, tuple[str, list[int]]], *, pad: int = 0, seed: int = 0
) -> dict[str, bytes]:
    """Write a file with random contents; returns each tensor's bytes. pad: bytes more in the header."""
    rng = random.Random(seed)
    header, contents, position = {}, {}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        contents[name] = rng.randbytes(size)
        position += size
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(contents.values()))
    return contents
