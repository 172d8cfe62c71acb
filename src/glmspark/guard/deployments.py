"""The deployments of this node, as their agents tell it in their state files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from .config import Thresholds, parse_thresholds
from .files import Roots, read_json
from .processes import Process, read_process

_PHASES = {
    "starting": "loading",
    "running": "loading",
    "restarting": "loading",
    "ready": "serving",
    "stopping": "stopping",
}
"""What a state of the agent means to the guard; any other is idle."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What a deployment may be called. The directories are a user's, who may make any others."""
_CONTAINER = re.compile(r"[0-9a-f]{64}")
_MOST, _FAMILY, _STATE = 512, 1024, 40
"""Deployments and processes of each that are looked at; characters of a state."""
PHASES = ("idle", "stopping", "serving", "loading")
"""The node's phase is the last of these that a deployment of it is in."""


def phase_of(state: Any) -> str:
    """The phase that an agent's state means."""
    return _PHASES.get(str(state), "idle")


@dataclass(frozen=True)
class Deployed:
    """One deployment on this node. home: its directory. resident: bytes its processes hold, without what the
    GPU driver holds for them. family: its processes; agent: the agent's own pid; container: the id of the one
    it runs in."""

    name: str
    home: str
    state: str
    phase: str
    rank: int | None
    thresholds: Thresholds
    family: tuple[Process, ...] = ()
    agent: int | None = None
    container: str | None = None

    @property
    def resident(self) -> int:
        """Bytes its processes hold."""
        return sum(one.resident for one in self.family)

    @property
    def halted(self) -> list[int]:
        """Its processes that are stopped by a signal."""
        return [one.pid for one in self.family if one.halted]

    @property
    def active(self) -> bool:
        """Whether it holds memory or is about to."""
        return self.phase in ("loading", "serving")

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "state": self.state,
            "phase": self.phase,
            "rank": self.rank,
            "resident": self.resident,
            "cpu_s": round(sum(one.cpu_s for one in self.family), 1),
            "halted": self.halted,
            "low": self.thresholds.low,
            "critical": self.thresholds.critical,
        }


def identities(value: Any) -> list[tuple[int, int]]:
    """Pid and start of each process in an agent's list; what is none is left out."""
    return [
        (one[0], one[1])
        for one in (value if isinstance(value, list) else ())
        if isinstance(one, list) and len(one) == 2 and all(isinstance(part, int) for part in one)
    ]


@dataclass
class DeploymentReader:
    """Reads them. A state file is read again only when it was replaced."""

    roots: Roots
    states: tuple[str, ...]
    _read: dict[str, tuple[tuple[int, int], Any]] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)

    def read(self, total: int) -> list[Deployed]:
        """All deployments of the users whose state directories are known. total: bytes of memory."""
        found: list[Deployed] = []
        self._asked = set()
        for base in self.states:
            for name in _names(f"{base}/ranks"):
                one = self._one(name, f"{base}/ranks/{name}", total)
                if one is not None:
                    found.append(one)
        self._read = {path: known for path, known in self._read.items() if path in self._asked}
        return found

    def _one(self, name: str, home: str, total: int) -> Deployed | None:
        state = self._json(f"{home}/state.json")
        if not isinstance(state, dict):
            return None
        phase = phase_of(state.get("state"))
        known = identities(state.get("family"))[:_FAMILY] if phase != "idle" else []
        read = ((started, read_process(self.roots, pid)) for pid, started in known)
        family = [one for started, one in read if one is not None and one.started == started]
        agent = next(iter(identities([state.get("agent")])), None)
        if phase != "idle" and not family and not self._lives(agent):
            phase = "idle"  # nobody is left to say otherwise in the file: a node that was restarted
        thresholds = parse_thresholds(self._json(f"{home}/guard.json") if phase != "idle" else None, total)
        rank, container = state.get("rank"), state.get("container")
        return Deployed(
            name=name,
            home=home,
            state=str(state.get("state"))[:_STATE],
            phase=phase,
            rank=rank if isinstance(rank, int) else thresholds.rank,
            thresholds=thresholds,
            family=tuple(family),
            agent=agent[0] if agent and self._lives(agent) else None,
            container=container if isinstance(container, str) and _CONTAINER.fullmatch(container) else None,
        )

    def _lives(self, one: tuple[int, int] | None) -> bool:
        if one is None:
            return False
        found = read_process(self.roots, one[0])
        return found is not None and found.started == one[1]

    def _json(self, path: str) -> Any:
        try:
            about = os.lstat(path)  # once a second for each
        except OSError:
            self._read.pop(path, None)
            return None
        mark = (about.st_mtime_ns, about.st_ino)
        self._asked.add(path)
        known = self._read.get(path)
        if known is None or known[0] != mark:
            known = self._read[path] = (mark, read_json(path))
        return known[1]


def _names(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            found = (one.name for one in entries if one.is_dir(follow_symlinks=False))
            return sorted(name for name in found if _NAME.fullmatch(name))[:_MOST]
    except OSError:
        return []


def node_phase(deployments: list[Deployed]) -> str:
    """The phase of the whole node."""
    return max((one.phase for one in deployments), key=PHASES.index, default="idle")
