"""Kernel settings that decide how a node behaves when memory is short."""

from __future__ import annotations

from glmspark.nodes.facts import Fact

NAMES = (
    "vm.swappiness",
    "vm.vfs_cache_pressure",
    "vm.min_free_kbytes",
    "vm.watermark_scale_factor",
    "vm.dirty_ratio",
    "vm.dirty_background_ratio",
    "vm.dirty_bytes",
    "vm.dirty_background_bytes",
    "vm.overcommit_memory",
    "vm.compaction_proactiveness",
    "vm.panic_on_oom",
    "kernel.panic",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.arp_announce",
    "net.core.rmem_max",
    "net.core.wmem_max",
)


def path(name: str) -> str:
    """The file of a setting under /proc/sys."""
    return "/proc/sys/" + name.replace(".", "/")


def parse_sysctls(text: str) -> dict[str, int]:
    """Settings by name from lines `/proc/sys/a/b:VALUE`. Raises ValueError for a value that is no number."""
    found = {}
    for line in text.splitlines():
        file, _, value = line.partition(":")
        if not file.startswith("/proc/sys/"):
            raise ValueError(f"not a setting: {line!r}")
        found[file.removeprefix("/proc/sys/").replace("/", ".")] = int(value)
    return found


# grep leaves with 2 when a kernel lacks one of the files; the others still count.
SYSCTLS = Fact("kernel settings", ("grep", "-sH", "", *map(path, NAMES)), parse_sysctls, partial=(2,))
