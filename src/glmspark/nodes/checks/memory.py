"""Whether there is memory for a rank, who holds it, and whether CUDA can take it.

GPU and host share one memory on a Spark. CUDA needs it free, in 2 MiB blocks; MemAvailable counts page cache
that CUDA does not get by itself, and vLLM's own start-up check looks at MemAvailable.
"""

from __future__ import annotations

from collections.abc import Callable

from glmspark.config.units import format_size
from glmspark.nodes.checks import Expected, Judge, Verdict
from glmspark.nodes.facts.memory_detail import HUGE_FREE, MEMORY_DETAIL, MemoryDetail
from glmspark.nodes.facts.nvidia import GPU_PROCESSES
from glmspark.nodes.facts.processes import PROCESSES
from glmspark.nodes.facts.swaps import SWAPS
from glmspark.nodes.facts.sysctls import SYSCTLS
from glmspark.nodes.survey import Facts

GIB = 2**30
LARGE = 2 * GIB
"""A process that holds more than this is named."""
SHARED_LIMIT = 8 * GIB
"""Files in /dev/shm are memory; what lies there unused is lost to CUDA."""
CACHE_LIMIT = 8 * GIB
CMA_SLACK = GIB


def free(facts: Facts, expected: Expected) -> Verdict:
    """There is memory for a rank, once the page cache is dropped."""
    judge = Judge("memory", facts.node)
    memory = facts.get(MEMORY_DETAIL)
    if memory is None:
        return judge.unread(facts, MEMORY_DETAIL)
    reachable = memory.free + memory.page_cache
    seen = (
        f"{format_size(memory.free)} free, {format_size(memory.page_cache)} page cache, of "
        f"{format_size(memory.total)}"
    )
    if expected.memory is not None and reachable < expected.memory:
        return judge.blocked(
            f"{seen}; a rank needs {format_size(expected.memory)}{_holders(facts)}",
            "end what holds it, or choose a recipe that needs less",
        )
    if expected.memory is not None and memory.free < expected.memory:
        return judge.slow(
            f"{seen}; a rank needs {format_size(expected.memory)} free",
            "drop the page cache: sudo sysctl vm.drop_caches=3",
            "page-cache",
        )
    if reachable < memory.total / 2:
        return judge.slow(f"{seen}{_holders(facts)}", "end what holds it, if it is not needed")
    return judge.ok(seen)


def _holders(facts: Facts) -> str:
    large = [one for one in facts.get(PROCESSES) or () if one.resident >= LARGE]
    large.sort(key=lambda one: -one.resident)
    named = ", ".join(f"{one.name} (pid {one.pid}) {format_size(one.resident)}" for one in large[:4])
    return f"; held by {named}" if named else ""


def gpu_free(facts: Facts) -> Verdict | None:
    """Nothing else computes on the GPU."""
    judge = Judge("GPU free", facts.node)
    running = facts.get(GPU_PROCESSES)
    if running is None:
        return None
    if running:
        named = ", ".join(
            f"{one.name} (pid {one.pid})" + (f" {format_size(one.memory)}" if one.memory else "")
            for one in running
        )
        return judge.slow(f"in use by {named}", "end it, or `glmspark down` if it is a deployment of ours")
    return judge.ok("nothing computes on it")


def large_blocks(facts: Facts) -> Verdict:
    """Free memory lies in blocks of 2 MiB; CUDA maps nothing smaller at full speed, and may refuse."""
    judge = Judge("2 MiB blocks", facts.node)
    memory, large = facts.get(MEMORY_DETAIL), facts.get(HUGE_FREE)
    if memory is None or large is None:
        return judge.unread(facts, HUGE_FREE if memory else MEMORY_DETAIL)
    seen = f"{format_size(large)} of {format_size(memory.free)} free memory"
    if memory.free > 4 * GIB and large < memory.free / 2:
        return judge.slow(
            seen,
            "on the node: sudo sysctl vm.drop_caches=3, then sudo sysctl vm.compact_memory=1",
            "page-cache",
        )
    return judge.ok(seen)


def _at_most(
    check: str,
    facts: Facts,
    amount: Callable[[MemoryDetail], int],
    limit: Callable[[MemoryDetail], int],
    remedy: str,
    *,
    excess: str,
    fix: str | None = None,
) -> Verdict:
    """One row of /proc/meminfo against a limit. excess: what is said of an amount beyond it."""
    judge = Judge(check, facts.node)
    memory = facts.get(MEMORY_DETAIL)
    if memory is None:
        return judge.unread(facts, MEMORY_DETAIL)
    seen = format_size(amount(memory))
    if amount(memory) > limit(memory):
        return judge.slow(seen + excess, remedy, fix)
    return judge.ok(seen)


def page_cache(facts: Facts) -> Verdict:
    """The page cache does not crowd CUDA out."""
    return _at_most(
        "page cache",
        facts,
        lambda memory: memory.page_cache,
        lambda memory: max(CACHE_LIMIT, memory.free),
        "drop it: sudo sysctl vm.drop_caches=3",
        excess=", more than is free",
        fix="page-cache",
    )


def shared(facts: Facts) -> Verdict:
    """Shared memory and tmpfs hold nothing large that someone left there."""
    return _at_most(
        "shared memory",
        facts,
        lambda memory: memory.shared,
        lambda _: SHARED_LIMIT,
        "see what lies there: ls -lS /dev/shm; remove what is not in use",
        excess=" in shared memory and tmpfs",
    )


def reserved(facts: Facts) -> Verdict:
    """No memory is set aside where CUDA cannot take or pin it: huge pages, CMA, kexec handover."""
    judge = Judge("reserved memory", facts.node)
    memory = facts.get(MEMORY_DETAIL)
    if memory is None:
        return judge.unread(facts, MEMORY_DETAIL)
    huge = memory.hugepages * memory.hugepage_size
    donated = memory.cma_free - memory.cma_total
    if donated > CMA_SLACK:
        return judge.blocked(
            f"CmaFree {format_size(memory.cma_free)} with CmaTotal {format_size(memory.cma_total)}: kexec "
            "handover left pageblocks that RDMA cannot pin, and NCCL dies with ENOMEM under pressure",
            "boot with kho=off (in /etc/default/grub, then sudo update-grub), or with a 6.17 kernel",
        )
    if memory.cma_total > CMA_SLACK:
        return judge.slow(
            f"CMA takes {format_size(memory.cma_total)}, which RDMA cannot pin",
            "remove cma= from the kernel's parameters",
        )
    if huge > GIB:
        return judge.slow(
            f"{format_size(huge)} set aside as huge pages, lost to CUDA",
            "on the node: sudo sysctl vm.nr_hugepages=0",
        )
    return judge.ok("none")


def swap(facts: Facts) -> Verdict:
    """There is swap for a moment of pressure, and it is used neither eagerly nor never."""
    judge = Judge("swap", facts.node)
    areas, settings = facts.get(SWAPS), facts.get(SYSCTLS)
    if areas is None:
        return judge.unread(facts, SWAPS)
    if not areas:
        return judge.slow("none", "`glmspark tune apply` makes a swap file where the disk allows", "swap")
    size, used = sum(one.size for one in areas), sum(one.used for one in areas)
    seen = f"{format_size(size)}, {format_size(used)} used"
    swappiness = (settings or {}).get("vm.swappiness")
    if swappiness is None:
        return judge.unread(facts, SYSCTLS)
    seen += f", swappiness {swappiness}"
    if swappiness > 60:
        return judge.slow(
            f"{seen}: the engine's own host memory goes to disk", "`glmspark tune apply` sets 10", "sysctl"
        )
    if swappiness < 5:
        return judge.slow(f"{seen}: nodes wedge before they swap", "`glmspark tune apply` sets 10", "sysctl")
    return judge.ok(seen)


def available_loss(total: int, min_free: int, scale: int) -> int:
    """Bytes by which vm.min_free_kbytes lowers MemAvailable, at least.

    The kernel (mm/page_alloc.c, mm/show_mem.c): low = min + max(min / 4, total * scale / 10000), high = low
    + the same step; available loses the high mark of all zones, and another low mark for the page cache.
    All in bytes; scale is vm.watermark_scale_factor.
    """
    step = max(min_free // 4, total * scale // 10000)
    low, high = min_free + step, min_free + 2 * step
    return high + low


def watermark(facts: Facts, expected: Expected) -> Verdict:
    """vm.min_free_kbytes keeps a reserve, but not so much that vLLM's start-up check fails."""
    judge = Judge("min_free_kbytes", facts.node)
    memory, settings = facts.get(MEMORY_DETAIL), facts.get(SYSCTLS)
    if memory is None or settings is None or "vm.min_free_kbytes" not in settings:
        return judge.unread(facts, SYSCTLS if memory else MEMORY_DETAIL)
    reserve = settings["vm.min_free_kbytes"] * 1024
    loss = available_loss(memory.total, reserve, settings.get("vm.watermark_scale_factor", 10))
    seen = f"{format_size(reserve)}, takes {format_size(loss)} from MemAvailable"
    if reserve > memory.total / 100:
        without = memory.available + loss
        if expected.memory is not None and memory.available < expected.memory <= without:
            return judge.blocked(
                f"{seen}: {format_size(memory.available)} are left and a rank needs "
                f"{format_size(expected.memory)}",
                "`glmspark tune apply` lowers it",
                "sysctl",
            )
        return judge.slow(seen, "`glmspark tune apply` lowers it", "sysctl")
    return judge.ok(seen)
