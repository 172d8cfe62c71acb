"""The deployments of this node, as their agents tell it in their state files."""

from __future__ import annotations

import os
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
PHASES = ("idle", "stopping", "serving", "loading")
"""The node's phase is the last of these that a deployment of it is in."""


def phase_of(state: Any) -> str:
    """The phase that an agent's state means."""
    return _PHASES.get(str(state), "idle")


@dataclass(frozen=True)
class Deployed:
    """One deployment on this node. home: its directory. resident: bytes its processes hold, without what the
    GPU driver holds for them. family: its processes; agent: the agent's own pid."""

    name: str
    home: str
    state: str
    phase: str
    rank: int | None
    thresholds: Thresholds
    family: tuple[Process, ...] = ()
    agent: int | None = None
    container: bool = False

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

    def read(self, total: int) -> list[Deployed]:
        """All deployments of the users whose state directories are known. total: bytes of memory."""
        found = []
        for base in self.states:
            for name in _names(f"{base}/ranks"):
                one = self._one(name, f"{base}/ranks/{name}", total)
                if one is not None:
                    found.append(one)
        return found

    def _one(self, name: str, home: str, total: int) -> Deployed | None:
        state = self._json(f"{home}/state.json")
        if not isinstance(state, dict):
            return None
        phase = phase_of(state.get("state"))
        known = identities(state.get("family")) if phase != "idle" else []
        read = ((started, read_process(self.roots, pid)) for pid, started in known)
        family = [one for started, one in read if one is not None and one.started == started]
        agent = next(iter(identities([state.get("agent")])), None)
        if phase != "idle" and not family and not self._lives(agent):
            phase = "idle"  # nobody is left to say otherwise in the file: a node that was restarted
        thresholds = parse_thresholds(self._json(f"{home}/guard.json") if phase != "idle" else None, total)
        rank = state.get("rank")
        return Deployed(
            name=name,
            home=home,
            state=str(state.get("state")),
            phase=phase,
            rank=rank if isinstance(rank, int) else thresholds.rank,
            thresholds=thresholds,
            family=tuple(family),
            agent=agent[0] if agent and self._lives(agent) else None,
            container=bool(state.get("container")),
        )

    def _lives(self, one: tuple[int, int] | None) -> bool:
        if one is None:
            return False
        found = read_process(self.roots, one[0])
        return found is not None and found.started == one[1]

    def _json(self, path: str) -> Any:
        try:
            about = os.stat(path)  # noqa: PTH116 - once a second for each
        except OSError:
            self._read.pop(path, None)
            return None
        mark = (about.st_mtime_ns, about.st_ino)
        known = self._read.get(path)
        if known is None or known[0] != mark:
            known = self._read[path] = (mark, read_json(path))
        return known[1]


def _names(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(one.name for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []


def node_phase(deployments: list[Deployed]) -> str:
    """The phase of the whole node."""
    return max((one.phase for one in deployments), key=PHASES.index, default="idle")
