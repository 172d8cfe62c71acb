"""Where a node's memory is: page cache, CMA, huge pages, slab, and how much of it lies in large pieces.

On a Spark the GPU takes from the same memory. CUDA needs free memory, not available memory, and free memory
in 2 MiB blocks; both are rows the usual tools leave out.
"""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.nodes.facts import Fact

HUGE = 2 * 1024 * 1024


@dataclass(frozen=True)
class MemoryDetail:
    """Bytes by row of /proc/meminfo. page_cache is Cached + Buffers without shared memory, so what dropping
    caches can free. cma_free may exceed cma_total: pageblocks that kexec handover donates are in it only."""

    total: int
    free: int
    available: int
    page_cache: int
    shared: int
    anonymous: int
    slab: int
    cma_total: int
    cma_free: int
    hugepages: int
    hugepage_size: int
    swap_total: int
    swap_free: int


def parse_detail(text: str) -> MemoryDetail:
    """A MemoryDetail from the text of /proc/meminfo (its unit kB is 1,024 bytes).

    Rows that a kernel without the feature leaves out are 0. Raises ValueError without the basic ones.
    """
    rows: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        words = value.split()
        if colon and words and words[0].isdecimal():
            rows[name.strip()] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    for needed in ("MemTotal", "MemFree", "MemAvailable"):
        if needed not in rows:
            raise ValueError(f"/proc/meminfo has no row {needed!r}")
    shared = rows.get("Shmem", 0)
    return MemoryDetail(
        total=rows["MemTotal"],
        free=rows["MemFree"],
        available=rows["MemAvailable"],
        page_cache=max(0, rows.get("Cached", 0) + rows.get("Buffers", 0) - shared),
        shared=shared,
        anonymous=rows.get("AnonPages", 0),
        slab=rows.get("Slab", 0),
        cma_total=rows.get("CmaTotal", 0),
        cma_free=rows.get("CmaFree", 0),
        hugepages=rows.get("HugePages_Total", 0),
        hugepage_size=rows.get("Hugepagesize", 0),
        swap_total=rows.get("SwapTotal", 0),
        swap_free=rows.get("SwapFree", 0),
    )


def parse_buddyinfo(text: str) -> int:
    """Bytes of free memory in blocks of at least 2 MiB.

    The text is the page size in bytes on the first line, then /proc/buddyinfo: per zone the number of free
    blocks of 2^0, 2^1, 2^2 ... pages. Raises ValueError for anything else.
    """
    first, _, rest = text.partition("\n")
    if not first.strip().isdecimal() or int(first) <= 0:
        raise ValueError(f"not a page size: {first.strip()!r}")
    page = int(first)
    free, zones = 0, 0
    for line in rest.splitlines():
        head, zone, counts = line.partition(" zone ")
        if not zone or not head.startswith("Node "):
            raise ValueError(f"not a row of /proc/buddyinfo: {line.strip()!r}")
        zones += 1
        for order, count in enumerate(counts.split()[1:]):
            if not count.isdecimal():
                raise ValueError(f"not a number of blocks: {count!r}")
            if page << order >= HUGE:
                free += int(count) * (page << order)
    if not zones:
        raise ValueError("/proc/buddyinfo has no zone")
    return free


MEMORY_DETAIL = Fact("memory in detail", ("cat", "/proc/meminfo"), parse_detail)
HUGE_FREE = Fact(
    "free 2 MiB blocks", ("sh", "-c", "getconf PAGESIZE && cat /proc/buddyinfo"), parse_buddyinfo
)
