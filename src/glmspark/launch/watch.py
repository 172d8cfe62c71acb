"""Noticing the end of a rank: its main process and the engine core and worker processes below it.

vLLM does not do this for us: with a dead worker on another rank the API's /health stays 200, and a dead head
leaves its followers waiting. Each process is watched through a pidfd, so its end is known at once.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from glmspark.nodes import processes
from glmspark.nodes.processes import Identity, Stat

VITAL_TITLE = "VLLM::"
"""vLLM titles its engine core and workers so; what else runs below a rank (compilers, trackers) may end."""


@dataclass(frozen=True)
class Ended:
    """A watched process that ended. title: '' for a rank's own main process. wait_status: None where the
    kernel no longer has it, because its parent already took it."""

    rank: int
    identity: Identity
    title: str
    wait_status: int | None


@dataclass
class _Watched:
    rank: int
    identity: Identity
    title: str
    handle: int


class Watch:
    """The processes watched, each registered at a selector under its pidfd."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._watched: dict[Identity, _Watched] = {}

    def add(self, rank: int, identity: Identity, title: str = "") -> bool:
        """Watch one more process. False when it has already ended."""
        if identity in self._watched:
            return True
        try:
            handle = os.pidfd_open(identity.pid)
        except OSError:
            return False
        if processes.read_stat(identity.pid) is None or not _same(identity):
            os.close(handle)
            return False
        watched = _Watched(rank, identity, title, handle)
        self._watched[identity] = watched
        self._selector.register(handle, selectors.EVENT_READ, watched)
        return True

    def discover(self, mains: dict[int, Identity], stats: Iterable[Stat]) -> None:
        """Watch what vLLM started below each rank's main process since the last look."""
        table = list(stats)
        for rank, main in mains.items():
            for stat in processes.descendants([main.pid], table):
                if stat.ended:
                    continue
                identity = Identity(stat.pid, stat.started)
                title = processes.title(stat.pid)
                known = self._watched.get(identity)
                if known is not None:
                    known.title = (
                        title or known.title
                    )  # workers learn their place, and their title, as they start
                elif title.startswith(VITAL_TITLE):
                    self.add(rank, identity, title)

    def ended(self, events: list[tuple[selectors.SelectorKey, int]]) -> list[Ended]:
        """Which of the watched processes the selector's events say have ended. They are watched no longer."""
        found = []
        for key, _ in events:
            watched = key.data
            if isinstance(watched, _Watched):
                found.append(self._end(watched))
        return found

    def _end(self, watched: _Watched) -> Ended:
        stat = processes.read_stat(watched.identity.pid)
        status = (
            stat.wait_status if stat and stat.ended and stat.started == watched.identity.started else None
        )
        self._selector.unregister(watched.handle)
        os.close(watched.handle)
        del self._watched[watched.identity]
        return Ended(watched.rank, watched.identity, watched.title, status)

    def titles(self, rank: int) -> dict[str, Identity]:
        """The engine core and workers watched for a rank."""
        return {one.title: one.identity for one in self._watched.values() if one.rank == rank and one.title}

    def close(self) -> None:
        """Stop watching."""
        for watched in list(self._watched.values()):
            self._selector.unregister(watched.handle)
            os.close(watched.handle)
        self._watched.clear()


def _same(identity: Identity) -> bool:
    stat = processes.read_stat(identity.pid)
    return stat is not None and stat.started == identity.started


def oom_kills(*, proc: Path = processes.PROC) -> int:
    """How often the kernel's out-of-memory killer has killed since boot, 0 where it does not say."""
    try:
        for line in (proc / "vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
