"""Block sizes and splits, by what is attended and by the device's shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.engine.attention.layout import Format

GB10_SHARED = 101_376
"""Bytes of shared memory a block may have on compute capability 12.1 (99 KiB)."""

WIDE_SHARED = 224 * 1024
"""From here on the wide blocks fit (compute capabilities 9.0 and 10.0)."""


@dataclass(frozen=True)
class Shape:
    """How `attend` is compiled. pairs: (row, head) pairs a block; keys: of one turn of its loop."""

    pairs: int
    keys: int
    warps: int
    stages: int


def ceiling(value: int, by: int) -> int:
    """value / by, rounded up."""
    return -(-value // by)


def shape_for(kind: Format, pairs: int, shared: int) -> Shape:
    """The block for so many (row, head) pairs a group, on a device that gives a block `shared` bytes."""
    if shared < WIDE_SHARED:
        # Five stages keep two turns' keys at once: the slots, or pages, come in the stages between. Eight
        # warps where four would spill registers.
        if pairs <= 16:
            return Shape(16, 32, 8 if kind is Format.PACKED else 4, 5)
        return Shape(32, 32, 8, 3 if kind is Format.PLAIN else 5)
    if kind is Format.PACKED:
        return Shape(16, 64, 8, 3) if pairs <= 16 else Shape(32, 64, 8, 3)
    if pairs <= 16:
        return Shape(16, 64, 4, 5)
    return Shape(32, 64, 8, 3) if pairs <= 32 else Shape(64, 64, 8, 2)


def splits_for(shape: Shape, blocks: int, keys: int, units: int) -> int:
    """How many parts the keys are cut into, so that `blocks` blocks a part fill `units` multiprocessors once.

    keys: the longest a row may have. A part is one turn of the loop at least.
    """
    wanted = max(1, units // max(blocks, 1))
    return max(1, min(wanted, ceiling(keys, shape.keys)))
