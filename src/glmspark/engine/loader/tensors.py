"""Tensors of what was read: views of the read buffers on the CPU, copies on the device elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from glmspark.engine.loader.reader import Loaded
from glmspark.engine.shards import Stored

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64,
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
"""PyTorch's types by the format's names."""

Named = tuple[Stored, torch.Tensor]

COPIES_UNDER_WAY = 2
"""Buffers that may still be on their way to the device while the next piece is handed out."""


def tensors(loaded: Iterable[Loaded], device: torch.device) -> Iterator[Named]:
    """Every tensor of the pieces, on `device`, in order.

    On the CPU a tensor is a view of a read buffer, which stays taken until the tensor is gone. Elsewhere each
    piece is copied to the device as one, on the current stream, and its tensors are views of that copy.
    """
    return _on_cpu(loaded) if device.type == "cpu" else _on_device(loaded, device)


def _on_cpu(loaded: Iterable[Loaded]) -> Iterator[Named]:
    parts = _Parts(torch.device("cpu"))
    for part in loaded:
        piece = part.piece
        if piece.partial:
            source = torch.frombuffer(part.view(piece.begin, piece.end), dtype=torch.uint8)
            whole = parts.add(part, source)
            del source
            if whole is not None:
                yield whole
            continue
        for stored in piece.tensors:
            if stored.nbytes == 0:
                yield stored, torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
            else:
                view = part.view(stored.offset, stored.end)
                yield stored, shaped(torch.frombuffer(view, dtype=torch.uint8), stored)


def _on_device(loaded: Iterable[Loaded], device: torch.device) -> Iterator[Named]:
    parts = _Parts(device)
    under_way: deque[tuple[Any, memoryview]] = deque()
    for part in loaded:
        piece = part.piece
        view = part.view(piece.begin, piece.end)
        source = torch.frombuffer(view, dtype=torch.uint8)
        if piece.partial:
            whole = parts.add(part, source)
            found = [] if whole is None else [whole]
        else:
            copy = torch.empty(piece.nbytes, dtype=torch.uint8, device=device)
            copy.copy_(source, non_blocking=True)
            found = [(stored, _cut(copy, stored, piece.begin)) for stored in piece.tensors]
            del copy
        event = torch.cuda.Event()
        event.record()
        under_way.append((event, view))
        del source, view
        while under_way and (len(under_way) > COPIES_UNDER_WAY or under_way[0][0].query()):
            under_way.popleft()[0].synchronize()
        while found:
            yield found.pop(0)
    for event, _ in under_way:
        event.synchronize()


class _Parts:
    """Puts a tensor together that comes in several pieces."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._whole: torch.Tensor | None = None

    def add(self, part: Loaded, source: torch.Tensor) -> Named | None:
        """Take the next part; the tensor, once it is complete."""
        piece, stored = part.piece, part.piece.tensors[0]
        if self._whole is None:
            self._whole = torch.empty(stored.nbytes, dtype=torch.uint8, device=self._device)
        target = self._whole[piece.begin - stored.offset : piece.end - stored.offset]
        target.copy_(source, non_blocking=True)
        if piece.end < stored.end:
            return None
        whole, self._whole = self._whole, None
        return stored, shaped(whole, stored)


def _cut(copy: torch.Tensor, stored: Stored, begin: int) -> torch.Tensor:
    if stored.nbytes == 0:
        return torch.empty(stored.shape, dtype=DTYPES[stored.dtype], device=copy.device)
    return shaped(copy[stored.offset - begin : stored.end - begin], stored)


def shaped(raw: torch.Tensor, stored: Stored) -> torch.Tensor:
    """The bytes as the tensor that they are. Copies where they do not lie at a multiple of an element."""
    dtype = DTYPES[stored.dtype]
    if raw.data_ptr() % dtype.itemsize or raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(stored.shape)


def pinned_memory(size: int) -> memoryview:
    """A buffer of `size` bytes that the device copies from without another copy on the host.

    CUDA gives it at a page's start. Raises what PyTorch raises where it cannot pin.
    """
    return memoryview(torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy())
