"""Kernel versions known to be bad, and settings that cost time or safety."""

from __future__ import annotations

import re

from glmspark.nodes.checks import Expected, Judge, Verdict
from glmspark.nodes.facts.host import CMDLINE, KERNEL
from glmspark.nodes.facts.kernel_log import KERNEL_LOG
from glmspark.nodes.facts.memory_detail import MEMORY_DETAIL
from glmspark.nodes.facts.sysctls import SYSCTLS
from glmspark.nodes.survey import Facts

# https://github.com/NVIDIA/NV-Kernels/pull/590 (7.0.0-1019 of the nvidia flavour) and
# https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259 (generic 7.0.0-31): kexec
# handover is on by default and leaves 9 GiB of pageblocks that cannot be pinned for long.
_HANDOVER = re.compile(r"^7\.0\.0-(\d+)")

_REMEDIES = {
    "memory": "the GPU was refused memory: leave more of it free (a smaller KV cache), drop the page cache "
    "before a start",
    "GPU": "reboot the node; if it comes again, cut its power for a minute, then run NVIDIA's diagnostics",
    "killed": "something took more memory than there is: see the checks memory and OOM daemons",
    "fabric": "look at cable and firmware of the ConnectX-7: sudo mlxfwmanager --query; reboot the node",
}
"""By kind of trouble in the kernel's log, the worst first."""


def version(facts: Facts) -> Verdict:
    """The kernel is not one known to break RDMA on these machines."""
    judge = Judge("kernel", facts.node)
    kernel, parameters, memory = facts.get(KERNEL), facts.get(CMDLINE), facts.get(MEMORY_DETAIL)
    if kernel is None:
        return judge.unread(facts, KERNEL)
    match = _HANDOVER.match(kernel.release)
    if match and kernel.arch == "aarch64" and "kho=off" not in (parameters or ()):
        donated = memory is not None and memory.cma_free - memory.cma_total > 2**30
        if memory is None or donated:
            return judge.blocked(
                f"{kernel.release} with kexec handover on: RDMA registrations fail with ENOMEM under memory "
                "pressure",
                "boot with kho=off (in /etc/default/grub, then sudo update-grub), or with a 6.17 kernel",
            )
    return judge.ok(f"{kernel.release} {kernel.arch}")


def log(facts: Facts) -> Verdict:
    """The kernel has not complained since it started: of the GPU and its memory, the fabric, or of memory
    that ran out."""
    judge = Judge("kernel log", facts.node)
    found = facts.get(KERNEL_LOG)
    if found is None:
        return judge.unread(facts, KERNEL_LOG)
    if not found:
        return judge.ok("no complaint since the start")
    kind = next(one for one in _REMEDIES if one in found)
    others = "".join(f"; also {len(lines)} on {one}" for one, lines in found.items() if one != kind)
    lines = found[kind]
    seen = f"{kind}: {lines[-1][:160]}" + (f" ({len(lines)} such lines)" if len(lines) > 1 else "")
    return judge.slow(seen + others, _REMEDIES[kind])


def reclaim(facts: Facts) -> Verdict:
    """Settings of memory reclaim do not work against the engine."""
    judge = Judge("reclaim settings", facts.node)
    settings = facts.get(SYSCTLS)
    if settings is None:
        return judge.unread(facts, SYSCTLS)
    wrong = []
    if settings.get("vm.vfs_cache_pressure", 100) > 200:
        wrong.append(
            f"vfs_cache_pressure {settings['vm.vfs_cache_pressure']} (drops directory entries needlessly)"
        )
    if settings.get("vm.compaction_proactiveness", 0) > 0:
        wrong.append(
            f"compaction_proactiveness {settings['vm.compaction_proactiveness']} (stirs while serving)"
        )
    if settings.get("vm.panic_on_oom", 0):
        wrong.append("panic_on_oom 1 (one process too many takes the node down)")
    if settings.get("vm.overcommit_memory", 0) == 2:
        wrong.append("overcommit_memory 2 (CUDA reserves far more addresses than memory)")
    if wrong:
        return judge.slow("; ".join(wrong), "`glmspark tune apply` sets them", "sysctl")
    return judge.ok("nothing against the engine")


def forwarding(facts: Facts, expected: Expected) -> Verdict | None:
    """Several fabric interfaces in one network answer only for their own addresses.

    Both halves of a ConnectX-7 port often share a subnet; with rp_filter 1 or arp_ignore 0 answers come over
    the other half, and RDMA pairs time out.
    """
    settings = facts.get(SYSCTLS)
    if not expected.rdma:
        return None
    judge = Judge("reverse path filter", facts.node)
    if settings is None:
        return judge.unread(facts, SYSCTLS)
    if settings.get("net.ipv4.conf.all.rp_filter", 0) == 1:
        return judge.slow(
            "rp_filter 1: packets that come in over the other half of a port are dropped",
            "`glmspark tune apply` sets 2",
            "sysctl",
        )
    return judge.ok(f"rp_filter {settings.get('net.ipv4.conf.all.rp_filter', 0)}")
