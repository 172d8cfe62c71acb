"""Who a node is."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Kernel:
    """A running kernel. release: as uname -r; arch: as uname -m."""

    release: str
    arch: str


@dataclass(frozen=True)
class System:
    """A distribution. id: ubuntu, debian …; version: 24.04 …; name: for people."""

    id: str
    version: str
    name: str


def parse_word(text: str) -> str:
    """The one word a command printed. Raises ValueError for none or several."""
    words = text.split()
    if len(words) != 1:
        raise ValueError(f"expected one word, got {text.strip()!r}")
    return words[0]


def parse_uname(text: str) -> Kernel:
    """The kernel from `uname -rm`. Raises ValueError for anything else."""
    words = text.split()
    if len(words) != 2:
        raise ValueError(f"expected release and architecture, got {text.strip()!r}")
    return Kernel(words[0], words[1])


def parse_os_release(text: str) -> System:
    """The system from the text of /etc/os-release. Raises ValueError without an ID."""
    rows = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals:
            rows[name] = value.strip("\"'")
    if not rows.get("ID"):
        raise ValueError("/etc/os-release has no ID")
    return System(rows["ID"], rows.get("VERSION_ID", ""), rows.get("PRETTY_NAME", rows["ID"]))


def parse_cmdline(text: str) -> tuple[str, ...]:
    """The kernel's start parameters, from the text of /proc/cmdline."""
    return tuple(text.split())


def parse_line(text: str) -> str:
    """The first line, stripped."""
    return text.strip().partition("\n")[0].strip()


HOSTNAME = Fact("hostname", ("cat", "/proc/sys/kernel/hostname"), parse_word)
BOOT_ID = Fact("boot id", ("cat", "/proc/sys/kernel/random/boot_id"), parse_word)
KERNEL = Fact("kernel", ("uname", "-rm"), parse_uname)
SYSTEM = Fact("operating system", ("cat", "/etc/os-release"), parse_os_release)
CMDLINE = Fact("kernel parameters", ("cat", "/proc/cmdline"), parse_cmdline)
PRODUCT = Fact("product", ("cat", "/sys/class/dmi/id/product_name"), parse_line)
