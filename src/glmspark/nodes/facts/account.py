"""Who ranks run as on a node, and which machine it is."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Account:
    """The SSH user of a node. home: its directory."""

    home: str
    name: str
    uid: int
    gid: int


def parse_account(text: str) -> Account:
    """An Account from the lines home, name, user id, group id. Raises ValueError for anything else."""
    lines = text.splitlines()
    if len(lines) != 4 or not lines[0].startswith("/") or not (lines[2] + lines[3]).isdecimal():
        raise ValueError(f"expected home, name and ids, got {text.strip()!r}")
    return Account(lines[0].rstrip("/") or "/", lines[1], int(lines[2]), int(lines[3]))


def parse_board(text: str) -> str:
    """What tells machines apart, from lines of /proc/stat and /proc/meminfo: when the kernel started, and how
    much memory it has. Nodes of a lab have one kernel. Raises ValueError where a line is missing."""
    lines = sorted(" ".join(line.split()) for line in text.splitlines())
    if len(lines) != 2 or not lines[0].startswith("MemTotal: ") or not lines[1].startswith("btime "):
        raise ValueError(f"expected btime and MemTotal, got {text.strip()!r}")
    return ", ".join(lines)


ACCOUNT = Fact("account", ("sh", "-c", 'echo "$HOME"; id -un; id -u; id -g'), parse_account)
BOARD = Fact("machine", ("grep", "-hE", "^(btime|MemTotal:) ", "/proc/stat", "/proc/meminfo"), parse_board)
