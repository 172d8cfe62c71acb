"""Changing a node: always plan → apply → restore, with a journal on the node.

The plan is pure: facts in, changes with their reasons out. Every change is one whose undoing is known before
it is made: the journal holds what was there before, and is written before the change.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Literal

JOURNAL = "/var/lib/glmspark/tune.json"
"""Where the journal lies on a node."""


@dataclass(frozen=True)
class PathState:
    """What a path is: nothing, a file with content, mode and owner, or a symbolic link.

    uid, gid: None means whoever writes it; what was read from a node has them.
    """

    kind: Literal["absent", "file", "link"]
    content: bytes = b""
    mode: int = 0o644
    uid: int | None = None
    gid: int | None = None
    target: str = ""

    def same(self, other: PathState) -> bool:
        """Whether both are alike; an owner that one of them leaves open counts as alike."""
        owners = all(
            one is None or two is None or one == two
            for one, two in ((self.uid, other.uid), (self.gid, other.gid))
        )
        mine = (self.kind, self.content, self.mode, self.target)
        return owners and mine == (other.kind, other.content, other.mode, other.target)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        if self.kind == "absent":
            return {"kind": "absent"}
        if self.kind == "link":
            return {"kind": "link", "target": self.target}
        return {
            "kind": "file",
            "content": base64.b64encode(self.content).decode(),
            "mode": self.mode,
            "uid": self.uid,
            "gid": self.gid,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PathState:
        """The reverse of to_json. Raises KeyError or ValueError for anything else."""
        if data["kind"] == "file":
            content = base64.b64decode(data["content"], validate=True)
            return cls("file", content, int(data["mode"]), _number(data["uid"]), _number(data["gid"]))
        if data["kind"] == "link":
            return cls("link", target=str(data["target"]))
        if data["kind"] == "absent":
            return cls("absent")
        raise ValueError(f"unknown kind {data['kind']!r}")


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


ABSENT = PathState("absent")


@dataclass(frozen=True)
class SetPath:
    """Make a path be this."""

    path: str
    after: PathState


@dataclass(frozen=True)
class SetSysctl:
    """Set a kernel setting now (its file under /etc/sysctl.d sets it at the next start)."""

    name: str
    value: int


@dataclass(frozen=True)
class StopService:
    """Stop a systemd unit now; at restore it is started again if it ran."""

    name: str


@dataclass(frozen=True)
class MakeSwap:
    """Make a swap file and use it. size: bytes."""

    path: str
    size: int


@dataclass(frozen=True)
class Linger:
    """Let a user's things live on after his last session."""

    user: str


@dataclass(frozen=True)
class RunService:
    """Have a systemd unit run, as it is now; at restore it is stopped, and what it has written removed.

    data: paths of that.
    """

    name: str
    data: tuple[str, ...] = ()


Change = SetPath | SetSysctl | StopService | MakeSwap | Linger | RunService


@dataclass(frozen=True)
class Item:
    """One thing to tune. key: how the command line names it. why: one line for each change or decision."""

    key: str
    title: str
    changes: tuple[Change, ...]
    why: tuple[str, ...]


@dataclass(frozen=True)
class TunePlan:
    """All that would be done on one node. left: what is not done there, and why."""

    node: str
    items: tuple[Item, ...]
    left: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "node": self.node,
            "items": [
                {
                    "key": item.key,
                    "title": item.title,
                    "why": list(item.why),
                    "changes": [describe(one) for one in item.changes],
                }
                for item in self.items
            ],
            "left": list(self.left),
        }


def describe(change: Change) -> str:
    """A change in a few words."""
    match change:
        case SetPath(path, after):
            if after.kind == "link":
                return f"{path} -> {after.target}"
            return f"write {path}" if after.kind == "file" else f"remove {path}"
        case SetSysctl(name, value):
            return f"{name} = {value}"
        case StopService(name):
            return f"stop {name}"
        case MakeSwap(path, size):
            return f"swap file {path} of {size / 2**30:g} GiB"
        case Linger(user):
            return f"linger {user}"
        case RunService(name):
            return f"run {name}"
