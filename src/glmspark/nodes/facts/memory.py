"""Memory of a node, from /proc/meminfo."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Memory:
    """Bytes of memory as the kernel counts them; swap is not part of total, free or available."""

    total: int
    free: int
    available: int
    swap_total: int
    swap_free: int


def parse_meminfo(text: str) -> Memory:
    """Memory from the text of /proc/meminfo (its unit kB is 1,024 bytes).

    Raises ValueError when a needed row is missing, negative or not a number.
    """
    rows: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        words = value.split()
        if not colon or not words or not words[0].isdecimal():
            continue
        rows[name.strip()] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    try:
        return Memory(
            total=rows["MemTotal"],
            free=rows["MemFree"],
            available=rows["MemAvailable"],
            swap_total=rows.get("SwapTotal", 0),
            swap_free=rows.get("SwapFree", 0),
        )
    except KeyError as missing:
        raise ValueError(f"/proc/meminfo has no row {missing}") from None


MEMORY = Fact("memory", ("cat", "/proc/meminfo"), parse_meminfo)
