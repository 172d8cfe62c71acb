"""Sizes as people write them: 256MiB, 2GiB, 1.5GB, or a whole number of bytes."""

from __future__ import annotations

import difflib
import re
from decimal import Decimal

__all__ = ["format_size", "parse_size"]

_UNITS = {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "B": 1,
}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([A-Za-z]+)", re.ASCII)
_LARGEST = 2**60


def parse_size(value: object) -> int:
    """Bytes of a size such as "256MiB", "1.5 GiB" or 1048576 (already bytes).

    Raises ValueError with the accepted units when the text is not a size, is zero, or exceeds 1 EiB.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"expected a size such as 256MiB, got {value!r}")
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"expected a size such as 256MiB, got {value!r}")
        number, unit = match.groups()
        if unit not in _UNITS:
            near = difflib.get_close_matches(unit.upper(), [name.upper() for name in _UNITS], n=1, cutoff=0.3)
            meant = [name for name in _UNITS if [name.upper()] == near]
            guess = f"did you mean {number}{meant[0]}? " if meant else ""
            raise ValueError(f"unknown unit {unit!r} in {value!r}; {guess}units are {', '.join(_UNITS)}")
        size = int(Decimal(number) * _UNITS[unit])
    if not 0 < size <= _LARGEST:
        raise ValueError(f"a size must be at least 1 byte and at most 1 EiB, got {value!r}")
    return size


def format_size(size: int) -> str:
    """A size for people, in binary units with at most one decimal: 268435456 -> "256 MiB"."""
    sign, rest = ("-", -size) if size < 0 else ("", size)
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if rest >= _UNITS[unit]:
            number = f"{rest / _UNITS[unit]:.1f}".removesuffix(".0")
            return f"{sign}{number} {unit}"
    return f"{sign}{rest} B"
