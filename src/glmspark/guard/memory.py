"""Memory: how much is free, in which pieces, and how hard the kernel works for it. Parsers are pure."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from .files import Roots

HUGE = 2 * 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Memory:
    """One reading. Bytes; swap_in, swap_out: bytes a second; psi_some, psi_full: per cent of the last 10 s.

    page_cache: what dropping it can free (Cached + Buffers without shared memory). huge_free: free memory in
    blocks of 2 MiB and more. available: the kernel's own estimate; it counts the page cache, which CUDA on
    unified memory cannot use.
    """

    total: int
    free: int
    available: int
    page_cache: int
    huge_free: int | None = None
    swap_free: int = 0
    swap_in: float = 0.0
    swap_out: float = 0.0
    psi_some: float = 0.0
    psi_full: float = 0.0

    @property
    def used(self) -> int:
        """What programs and the GPU hold: all but what is free or page cache."""
        return max(0, self.total - self.free - self.page_cache)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {**asdict(self), "swap_in": round(self.swap_in), "swap_out": round(self.swap_out)}


def parse_meminfo(text: str) -> Memory:
    """The reading in /proc/meminfo (its unit kB is 1,024 bytes). Raises ValueError without the basic rows."""
    rows: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if colon and number.isdecimal() and number.isascii():
            rows[name] = int(number) * (1024 if unit == "kB" else 1)
    for needed in ("MemTotal", "MemFree", "MemAvailable"):
        if needed not in rows:
            raise ValueError(f"/proc/meminfo has no row {needed!r}")
    return Memory(
        total=rows["MemTotal"],
        free=rows["MemFree"],
        available=rows["MemAvailable"],
        page_cache=max(0, rows.get("Cached", 0) + rows.get("Buffers", 0) - rows.get("Shmem", 0)),
        swap_free=rows.get("SwapFree", 0),
    )


def parse_buddyinfo(text: str, *, page: int = PAGE) -> int:
    """Bytes free in blocks of at least 2 MiB, from /proc/buddyinfo: per zone the number of free blocks of
    2^0, 2^1, 2^2 ... pages. page: bytes of a page (64 KiB kernels exist). Raises ValueError."""
    free, zones = 0, 0
    for line in text.splitlines():
        head, zone, counts = line.partition(" zone ")
        if not zone or not head.startswith("Node "):
            raise ValueError(f"not a row of /proc/buddyinfo: {line.strip()[:80]!r}")
        zones += 1
        for order, count in enumerate(counts.split()[1:]):
            if not (count.isdecimal() and count.isascii()):
                raise ValueError(f"not a number of blocks: {count[:20]!r}")
            if page << order >= HUGE:
                free += int(count) * (page << order)
    if not zones:
        raise ValueError("/proc/buddyinfo has no zone")
    return free


def parse_vmstat(text: str, *, page: int = PAGE) -> tuple[int, int]:
    """Bytes swapped in and out since the node started, from /proc/vmstat. Raises ValueError."""
    found = []
    for name in ("pswpin", "pswpout"):
        at = text.find(f"\n{name} ")
        number = text[at + len(name) + 2 :].partition("\n")[0].strip() if at >= 0 else "0"
        if not (number.isdecimal() and number.isascii()):
            raise ValueError(f"/proc/vmstat: {name} is {number[:20]!r}")
        found.append(int(number) * page)
    return found[0], found[1]


def parse_pressure(text: str) -> tuple[float, float]:
    """Per cent of the last 10 s in which some and all tasks waited for memory, from /proc/pressure/memory
    (https://docs.kernel.org/accounting/psi.html). Raises ValueError."""
    rows: dict[str, float] = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        name, _, number = rest.partition(" ")[0].partition("=")
        if name == "avg10":
            rows[kind] = float(number)
    if "some" not in rows:
        raise ValueError("/proc/pressure/memory has no row 'some'")
    return rows["some"], rows.get("full", 0.0)


def within_group(memory: Memory, limit: int, usage: int, cache: int) -> Memory:
    """The reading as a control group sees it: its limit is all there is. cache: page cache charged to it."""
    if not 0 < limit < memory.total:
        return memory
    free = max(0, min(memory.free, limit - usage))
    available = min(memory.available, free + cache)
    return replace(memory, total=limit, free=free, available=available, page_cache=cache, huge_free=None)


def parse_group_stat(text: str) -> int:
    """Bytes of page cache in a control group's memory.stat (version 1: total_cache, 2: file), without shared
    memory. Raises ValueError for rows that are none."""
    rows = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if not (number.isdecimal() and number.isascii()):
            raise ValueError(f"not a row of memory.stat: {line[:80]!r}")
        rows[name] = int(number)
    cache = rows.get("total_cache", rows.get("cache", rows.get("file", 0)))
    return max(0, cache - rows.get("total_shmem", rows.get("shmem", 0)))


class MemoryReader:
    """Reads it all. group: directory of a control group whose limit counts instead of the machine's."""

    def __init__(self, roots: Roots, group: str | None = None) -> None:
        self._roots = roots
        self._group = group
        self._swapped: tuple[float, int, int] | None = None

    def read(self, now: float, blind: dict[str, str]) -> Memory | None:
        """A reading; None where /proc/meminfo is not to be had. now: monotonic seconds. blind: gets what
        could not be read, and why."""
        try:
            memory = parse_meminfo(self._roots.read("/proc/meminfo"))
        except (OSError, ValueError) as error:
            blind["meminfo"] = str(error)
            return None
        try:
            memory = replace(memory, huge_free=parse_buddyinfo(self._roots.read("/proc/buddyinfo")))
        except (OSError, ValueError) as error:
            blind["buddyinfo"] = str(error)
        try:
            some, full = parse_pressure(self._roots.read("/proc/pressure/memory"))
            memory = replace(memory, psi_some=some, psi_full=full)
        except FileNotFoundError:
            pass  # a kernel without PSI: the other readings have to do
        except (OSError, ValueError) as error:
            blind["pressure"] = str(error)
        try:
            memory = self._with_swap(memory, now)
        except (OSError, ValueError) as error:
            blind["vmstat"] = str(error)
        if self._group is not None:
            try:
                memory = self._within(memory)
            except (OSError, ValueError) as error:
                blind["control group"] = str(error)
        return memory

    def _with_swap(self, memory: Memory, now: float) -> Memory:
        came, went = parse_vmstat(self._roots.read("/proc/vmstat"))
        before, self._swapped = self._swapped, (now, came, went)
        if before is None or now <= before[0]:
            return memory
        seconds = now - before[0]
        return replace(
            memory,
            swap_in=max(0, came - before[1]) / seconds,
            swap_out=max(0, went - before[2]) / seconds,
        )

    def _within(self, memory: Memory) -> Memory:
        names = ("memory.max", "memory.current")
        if not os.path.exists(f"{self._group}/{names[0]}"):  # noqa: PTH110
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, usage = (self._roots.read(f"{self._group}/{name}").strip() for name in names)
        if limit == "max":
            return memory
        cache = parse_group_stat(self._roots.read(f"{self._group}/memory.stat"))
        return within_group(memory, int(limit), int(usage), cache)
