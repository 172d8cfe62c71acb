"""Which processor cores a process started on a node may use."""

from __future__ import annotations

from glmspark.nodes.facts import Fact


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Core numbers from the kernel's list format.

    >>> parse_cpu_list("0-2,5")
    (0, 1, 2, 5)

    Raises ValueError for anything else, an empty list included.
    """
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"not a list of cores: {text.strip()!r}")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low > 65536:
            raise ValueError(f"not a range of cores: {part.strip()!r}")
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


def parse_allowed_cores(text: str) -> tuple[int, ...]:
    """Cores of the row Cpus_allowed_list in the text of /proc/self/status.

    The affinity a shell or a service manager set is inherited, so the command's own status tells what a rank
    started the same way would get. Raises ValueError when the row is missing or malformed.
    """
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return parse_cpu_list(value)
    raise ValueError("/proc/self/status has no row Cpus_allowed_list")


CORES = Fact("cores", ("cat", "/proc/self/status"), parse_allowed_cores)
