"""Whether a deployment stands still, and which rank it waits for: from readings of all nodes. No clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .api import Metrics
from .readings import Reading
from .spec import Watching

LONGEST = 600.0
"""Seconds that no bound exceeds; and the bound where no rank counts its steps, for a long prompt makes no
token."""
_TIMES = 5.0  # the longest silence seen while all was well, so often, is none yet
_BUSY, _LOW_POWER = 80.0, 30.0
"""Percent of utilisation and watts that together mean that a GPU spins in a wait: seen at 96 % and 20 W
(vllm-project/vllm issue 41725)."""
_WINDOW = 10.0  # seconds over which processor time is compared


@dataclass
class _Rank:
    node: str
    latest: Reading | None = None
    moved: float = 0.0
    halted_since: float | None = None
    cpu: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=120))


class Judge:
    """One stretch of serving. nodes: by rank. now, here and below: monotonic seconds."""

    def __init__(self, bounds: Watching, nodes: Mapping[int, str], now: float) -> None:
        self._bounds = bounds
        self._ranks = {rank: _Rank(node) for rank, node in nodes.items()}
        self._answered = self._progress = now
        self._refused = ""
        self._metrics: Metrics | None = None
        self._canary: tuple[float, str] | None = None
        self.longest = 0.0

    # -- what comes in ---------------------------------------------------------------------------------------

    def rank(self, rank: int, reading: Reading, now: float) -> None:
        """A look at a rank."""
        one = self._ranks[rank]
        before, one.latest = one.latest, reading
        one.cpu.append((now, reading.cpu))
        if before is None or before.steps != reading.steps:
            one.moved = now
            if before is not None:
                self._moved(now)
        if not reading.halted:
            one.halted_since = None
        elif one.halted_since is None:
            one.halted_since = now

    def metrics(self, found: Metrics, now: float) -> None:
        """The API has said how it is."""
        before, self._metrics = self._metrics, found
        self._answered = now
        if before is None or before.running == 0 or found.running == 0:
            self._progress = now  # nothing was under way all the time
        elif found.tokens != before.tokens:
            self._moved(now)

    def silent(self, why: str) -> None:
        """The API has not said how it is."""
        self._refused = why

    def canary(self, why: str | None, now: float) -> None:
        """A request of one token was answered (None), or why not."""
        self._canary = None if why is None else (now, why)

    def shift(self, seconds: float) -> None:
        """Time in which this agent itself did not run is nobody's silence."""
        self._answered += seconds
        self._progress += seconds
        for one in self._ranks.values():
            if one.halted_since is not None:
                one.halted_since += seconds

    def _moved(self, now: float) -> None:
        if self._metrics is not None and self._metrics.running:
            self.longest = max(self.longest, now - self._progress)
        self._progress = now

    # -- what comes out --------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, as far as the API says."""
        return self._metrics is not None and self._metrics.running == self._metrics.waiting == 0

    @property
    def bound(self) -> float:
        """Seconds without a token or a step, while requests run, that are a stall."""
        counted = any(one.latest is not None and one.latest.steps for one in self._ranks.values())
        least = self._bounds.tokens if counted else LONGEST
        return min(LONGEST, max(least, _TIMES * self.longest))

    def verdict(self, now: float) -> dict[str, Any] | None:
        """Why it stands still, as parts of a reason: kind, what, seen, rank, node; None while it does not."""
        for rank, one in self._ranks.items():
            if one.halted_since is not None and now - one.halted_since > self._bounds.halted:
                assert one.latest is not None  # noqa: S101 - it was seen halted
                what = f"rank {rank} on {one.node} is halted: {', '.join(one.latest.halted)}"
                api = rank == 0 and any("the main process" in name for name in one.latest.halted)
                what = f"the API server of {what}" if api else what
                return self._found("halted", rank, what, f"for {now - one.halted_since:.0f} s")
        if now - self._answered > self._bounds.api:
            silent = f"has not answered for {now - self._answered:.0f} s"
            return self._found(
                "api", 0, f"the API of rank 0 on {self._ranks[0].node} {silent}", self._refused
            )
        if self._metrics is not None and self._metrics.running and now - self._progress > self.bound:
            culprit, why = self._culprit(now)
            still = f"no token and no step for {now - self._progress:.0f} s while requests run"
            return self._found("tokens", culprit, self._waits(culprit, still), why)
        if self._canary is not None:
            culprit, why = self._culprit(now)
            what = self._waits(culprit, "a request of one token got no answer")
            return self._found("canary", culprit, what, f"{self._canary[1]}\n{why}")
        return None

    def _waits(self, rank: int | None, what: str) -> str:
        return what if rank is None else f"{what}: rank {rank} on {self._ranks[rank].node} stands still"

    def _found(self, kind: str, rank: int | None, what: str, seen: str) -> dict[str, Any]:
        node = None if rank is None else self._ranks[rank].node
        alerts = [
            f"{one.node}: {text}" for one in self._ranks.values() if one.latest for text in one.latest.alerts
        ]
        return {
            "kind": kind,
            "rank": rank,
            "node": node,
            "what": what,
            "seen": "\n".join([seen, *alerts]).strip(),
        }

    def _culprit(self, now: float) -> tuple[int | None, str]:
        """The rank that the others wait for, None where nothing tells it; and what was seen of all."""
        known = {rank: one.latest for rank, one in self._ranks.items() if one.latest is not None}
        lines = [f"rank {rank} on {self._ranks[rank].node}: {self._shown(rank, one, now)}"
                 for rank, one in known.items()]  # fmt: skip
        return (_behind(known) if len(known) > 1 else None), "\n".join(lines)

    def _shown(self, rank: int, one: Reading, now: float) -> str:
        parts = [f"processor {100 * self._share(rank, now):.0f} %"]
        if one.steps is not None:
            parts.insert(0, f"steps {one.steps[0]} begun, {one.steps[1]} ended")
        parts += [f"GPU {util:.0f} % at {power:.0f} W" for util, power in one.gpus]
        return ", ".join(parts)

    def _share(self, rank: int, now: float) -> float:
        """Cores used of late."""
        seen = [(at, cpu) for at, cpu in self._ranks[rank].cpu if now - at <= _WINDOW]
        if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
            return 0.0
        return max(0.0, (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]))


def spins(one: Reading) -> bool:
    """Whether its GPUs wait busily: much utilisation at little power."""
    return bool(one.gpus) and all(util >= _BUSY and power <= _LOW_POWER for util, power in one.gpus)


def _behind(known: Mapping[int, Reading]) -> int | None:
    """The one rank that is behind the others: by its steps, else the one whose GPU does not spin."""
    counted = {rank: one.steps for rank, one in known.items() if one.steps is not None}
    if len(counted) == len(known):
        for part in (0, 1):
            least = min(steps[part] for steps in counted.values())
            found = [rank for rank, steps in counted.items() if steps[part] == least]
            if len(found) < len(counted):
                return found[0] if len(found) == 1 else None
    working = [rank for rank, one in known.items() if one.gpus and not spins(one)]
    return working[0] if len(working) == 1 else None
