"""A node's view of the file system: what is shared, what is its own. Pure functions to argv lists.

The machine's whole tree is there, read-only, so programs and environments lie where they lie on the machine.
Of its own a node has what a machine of its own would: /etc, /var, /home, /root, /tmp, /run, /dev/shm,
/dev/pts, and /sys as its network namespace has it. Its vm.* settings are files of its own that change nothing
of the kernel's; the other settings that are the whole machine's cannot be written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from glmspark.lab.commands import Argv

OWN = ("etc", "var", "home", "root", "tmp")
"""Directories that lie in the node's own directory on the machine."""

LOCKED = ("/proc/sys/kernel", "/proc/sys/fs", "/proc/sysrq-trigger")
"""Settings of the whole machine, which a node may read."""

_HIDDEN = tuple(PurePosixPath("/", name) for name in (*OWN, "run", "dev", "proc", "sys"))
_KEPT_FLAGS = ("nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime")
_WORK = "run/lab"


@dataclass(frozen=True)
class Mount:
    """A row of /proc/self/mountinfo. options: those of this mount point, not of the file system."""

    point: PurePosixPath
    kind: str
    options: tuple[str, ...]


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts in the text of /proc/self/mountinfo. Raises ValueError where a row is not one."""
    found = []
    for line in text.removesuffix("\n").split("\n") if text else ():
        head, dash, tail = line.partition(" - ")
        fields = head.split(" ")
        if not dash or len(fields) < 6:
            raise ValueError(f"not a row of mountinfo: {line[:120]!r}")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        found.append(Mount(PurePosixPath(point), tail.split(" ")[0], tuple(fields[5].split(","))))
    return found


def is_hidden(path: PurePosixPath) -> bool:
    """Whether a path of the machine lies where a node has something of its own."""
    return any(path == top or top in path.parents for top in _HIDDEN)


def share_tree(root: str) -> Argv:
    """Show the machine's whole tree at `root`."""
    return ["mount", "--rbind", "/", root]


def list_mounts() -> Argv:
    """Print the mounts of a node, for parse_mountinfo."""
    return ["cat", "/proc/self/mountinfo"]


def make_read_only(root: str, mounts: Sequence[Mount]) -> list[Argv]:
    """Forbid writing to what the tree at `root` shows of the machine."""
    top = PurePosixPath(root)
    commands = []
    for mount in mounts:
        if mount.point != top and top not in mount.point.parents:
            continue
        inside = PurePosixPath("/") / mount.point.relative_to(top)
        if is_hidden(inside) or mount.kind in ("autofs", "nsfs") or "ro" in mount.options:
            continue
        kept = [flag for flag in _KEPT_FLAGS if flag in mount.options]
        options = ",".join(["remount", "bind", "ro", *kept])
        commands.append(["mount", "-o", options, str(mount.point)])
    return commands


def own_mounts(root: str, own: str, exposed: Sequence[str], locked: Sequence[str]) -> list[Argv]:
    """What a node has of its own, mounted over the tree at `root`.

    own: the node's directory on the machine, with a directory for each of OWN, `vm` and `boot_id`. exposed:
    directories of the machine that are shown read-only though they lie under what is hidden. locked: those of
    LOCKED that this kernel has.
    """
    work = f"{root}/{_WORK}"
    commands: list[Argv] = [
        ["mount", "-t", "tmpfs", "-o", "mode=0755,nosuid,nodev", "tmpfs", f"{root}/run"],
        ["mkdir", "-p", f"{root}/run/lock", f"{root}/run/sshd", f"{work}/machine", f"{work}/sys"],
        ["mount", "-t", "tmpfs", "-o", "mode=1777,nosuid,nodev", "tmpfs", f"{root}/dev/shm"],  # noqa: S108
        # Group 5 is `tty` on Debian and Ubuntu; terminals belong to it.
        [
            "mount",
            "-t",
            "devpts",
            "-o",
            "newinstance,ptmxmode=0666,mode=0620,gid=5",
            "devpts",
            f"{root}/dev/pts",
        ],
        # /sys shows the network of who mounts it; the control groups below it stay as they are.
        ["mount", "-t", "sysfs", "-o", "ro,nosuid,nodev,noexec", "sysfs", f"{work}/sys"],
        ["mount", "--rbind", f"{root}/sys/fs/cgroup", f"{work}/sys/fs/cgroup"],
        ["mount", "--move", f"{work}/sys", f"{root}/sys"],
        *(["mount", "--bind", f"{own}/{name}", f"{root}/{name}"] for name in OWN),
        ["mount", "--bind", f"{own}/vm", f"{root}/proc/sys/vm"],
    ]
    for path in locked:
        commands += _read_only(f"{root}{path}", f"{root}{path}")
    # The kernel is the same, but each node has started for itself.
    commands.append(["mount", "--bind", f"{own}/boot_id", f"{root}/proc/sys/kernel/random/boot_id"])
    for path in exposed:
        commands.append(["mkdir", "-p", f"{root}{path}"])
        commands += _read_only(path, f"{root}{path}")
    return commands


def enter_tree(root: str) -> list[Argv]:
    """Make the tree at `root` the node's root and drop the machine's."""
    return [
        ["pivot_root", root, f"{root}/{_WORK}/machine"],
        ["umount", "--lazy", f"/{_WORK}/machine"],
        ["rmdir", f"/{_WORK}/machine", f"/{_WORK}/sys", f"/{_WORK}"],
    ]


def _read_only(source: str, target: str) -> list[Argv]:
    return [["mount", "--bind", source, target], ["mount", "-o", "remount,bind,ro", target]]


def minimal(paths: Sequence[PurePosixPath]) -> list[PurePosixPath]:
    """The paths without those below another of them, sorted."""
    kept: list[PurePosixPath] = []
    for path in sorted(set(paths)):
        if not any(path == top or top in path.parents for top in kept):
            kept.append(path)
    return kept
