"""The user we come as: name, sudo, limits, and what logind does to what it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class User:
    """Who we are on the node. groups: names."""

    name: str
    uid: int
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """Limits of a process started over SSH. memlock: bytes. files: open files. None is no limit."""

    memlock: int | None
    files: int | None


def parse_user(text: str) -> User:
    """The user from lines name, uid, groups. Raises ValueError for anything else."""
    lines = text.splitlines()
    if len(lines) != 3 or not lines[1].isdecimal():
        raise ValueError(f"not a user: {text!r}")
    return User(lines[0], int(lines[1]), tuple(lines[2].split()))


def parse_yes(text: str) -> bool:
    """yes or no."""
    if text.strip() not in ("yes", "no"):
        raise ValueError(f"expected yes or no, got {text.strip()!r}")
    return text.strip() == "yes"


def parse_limits(text: str) -> Limits:
    """Limits from the text of /proc/self/limits. Raises ValueError without the needed rows."""
    rows = {}
    for line in text.splitlines():
        for name in ("Max locked memory", "Max open files"):
            if line.startswith(name):
                soft = line[len(name) :].split()[0]
                rows[name] = None if soft == "unlimited" else int(soft)
    if len(rows) != 2:
        raise ValueError("/proc/self/limits lacks locked memory or open files")
    return Limits(memlock=rows["Max locked memory"], files=rows["Max open files"])


def parse_remove_ipc(text: str) -> bool:
    """Whether logind removes a user's shared memory and semaphores when his last session ends.

    The text is all of logind's settings in the order they count: the last value wins, and yes is the default.
    """
    value = True
    for line in text.splitlines():
        name, equals, setting = line.strip().partition("=")
        if equals and name.strip() == "RemoveIPC":
            value = setting.strip().lower() in ("", "1", "yes", "y", "true", "t", "on")
    return value


def parse_names(text: str) -> tuple[str, ...]:
    """One name a line."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


USER = Fact("user", ("sh", "-c", "id -un; id -u; id -Gn"), parse_user)
SUDO = Fact("sudo", ("sh", "-c", "if sudo -n true 2> /dev/null; then echo yes; else echo no; fi"), parse_yes)
LIMITS = Fact("limits", ("cat", "/proc/self/limits"), parse_limits)
REMOVE_IPC = Fact(
    "logind settings", ("systemd-analyze", "cat-config", "systemd/logind.conf"), parse_remove_ipc
)
LINGER = Fact(
    "lingering users",
    ("find", "/var/lib/systemd/linger", "-type", "f", "-printf", "%f\\n"),
    parse_names,
    partial=(1,),
)
VERBS = Fact(
    "verbs devices",
    ("find", "/dev/infiniband", "-type", "c", "-printf", "%f\\n"),
    parse_names,
    partial=(1,),
)
