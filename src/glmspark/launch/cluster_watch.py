"""A cluster's start as its ranks tell it: how far each is, what went wrong first, what takes too long.

No clock, no network: what comes from the nodes' agents goes in, the record and a reason to stop come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glmspark.launch import phases, reasons
from glmspark.launch.faults import FirstError
from glmspark.launch.phases import FOLLOWING, Phase, Progress
from glmspark.launch.record import Deployment, RankRecord, Reason

__all__ = ["ClusterWatch"]

_OVER = ("stopped", "failed")


@dataclass
class _Rank:
    record: RankRecord
    progress: Progress = field(default_factory=Progress)
    fault: FirstError = field(default_factory=FirstError)
    state: str = "starting"
    processes: tuple[str, ...] = ()


class ClusterWatch:
    """The ranks of one start. changed: whether the record has anything new since it was last asked."""

    def __init__(self, deployment: Deployment, *, began: float) -> None:
        self.deployment = deployment
        self.began = began
        self.joined: float | None = None
        self.changed = True
        self._ranks = {rank.node: _Rank(rank) for rank in deployment.ranks}
        self._reasons: dict[str, Reason] = {}
        self._lost: dict[str, str] = {}

    @property
    def serving(self) -> bool:
        """Whether rank 0 has opened its API."""
        return self._head.progress.phase is Phase.SERVING

    @property
    def opening(self) -> bool:
        """Whether rank 0 is about to."""
        return self._head.progress.phase >= Phase.WARMING

    @property
    def _head(self) -> _Rank:
        return self._ranks[self.deployment.ranks[0].node]

    def census(self) -> dict[int, list[str]]:
        """The titles of the vLLM processes of each rank that runs, as its agent last said."""
        return {
            one.record.rank: list(one.processes) for one in self._ranks.values() if one.state not in _OVER
        }

    # -- what comes in ------------------------------------------------------------------------------------

    def log(self, node: str, line: str, *, at: float) -> None:
        """A line of a rank's output. at: Unix seconds."""
        rank = self._ranks[node]
        before = str(rank.progress)
        rank.progress = phases.advance(rank.progress, line)
        rank.fault.feed(line)
        if str(rank.progress) != before:
            self._note(rank, str(rank.progress), at)
        if self.serving:
            for one in self._ranks.values():
                if one.record.rank and one.record.phase != FOLLOWING:
                    self._note(one, FOLLOWING, at)

    def state(self, node: str, data: Mapping[str, Any], *, at: float) -> None:
        """A node's state, as its agent keeps it."""
        rank = self._ranks[node]
        rank.state = str(data.get("state"))
        rank.processes = tuple(data.get("processes") or ())
        self._lost.pop(node, None)
        if not rank.record.since and rank.state not in ("starting", *_OVER):
            self._note(rank, Phase.STARTING.label, at)
        if data.get("reason"):
            self._reasons[node] = _reason(data["reason"], at)
            self.changed = True

    def lost(self, node: str, what: str) -> None:
        """A node cannot be heard any more."""
        self._lost[node] = what

    def back(self, node: str) -> None:
        """It can again."""
        self._lost.pop(node, None)

    def _note(self, rank: _Rank, phase: str, at: float) -> None:
        rank.record.phase, rank.record.since = phase, at
        self.changed = True

    # -- what comes out -----------------------------------------------------------------------------------

    @property
    def failing(self) -> bool:
        """Whether some rank has ended, or a node was lost: a reason is, or will be, known."""
        return bool(self._reasons) or any(one.state in _OVER for one in self._ranks.values())

    @property
    def all_told(self) -> bool:
        """Whether every node that can be heard has said why it ended."""
        return all(
            node in self._reasons or node in self._lost or one.state in _OVER
            for node, one in self._ranks.items()
        )

    def reason(self, *, at: float) -> Reason:
        """Why it failed: the cause, not what followed from it. at: Unix seconds.

        Each agent says which rank it stopped for. The cause is the rank that says it of itself; where none
        does (its node is gone), the rank that the others name. What its log said first is added.
        """
        own = [
            (node, why)
            for node, why in self._reasons.items()
            if why.rank is not None and why.rank == self._ranks[node].record.rank
        ]
        named = own or [(node, why) for node, why in self._reasons.items() if why.rank is not None]
        named = named or list(self._reasons.items())
        if named:
            found = min((why for _, why in named), key=lambda why: why.at)
        else:
            node = next(iter(self._lost), None) or next(
                (name for name, one in self._ranks.items() if one.state in _OVER), None
            )
            what = f"{node} was lost while it started" if node in self._lost else "a rank was stopped"
            found = Reason(what=what, node=node, seen=self._lost.get(node or ""), at=at)
        return self._with_evidence(found)

    def _with_evidence(self, found: Reason) -> Reason:
        rank = next((one for one in self._ranks.values() if one.record.rank == found.rank), None)
        if rank is None:
            return found
        said = rank.fault.report() if rank.fault.message or rank.fault.said else None
        seen = said or found.seen or rank.fault.report()
        symptom = reasons.symptom_of(rank.fault)
        advice = reasons.advice_of(symptom) if symptom is not None else None
        return found.model_copy(
            update={
                "node": found.node or rank.record.node,
                "seen": seen,
                "next": advice or found.next or f"`glmspark logs --rank {rank.record.rank}`",
                "symptom": symptom.symptom.name if symptom is not None else None,
            }
        )

    def late(self, *, now: float) -> Reason | None:
        """The time limit that has run out, None while there is time. now: as `began`, seconds."""
        limits = self.deployment.limits
        ranks = list(self._ranks.values())
        if self.joined is None and all(one.progress.phase >= Phase.JOINING for one in ranks):
            self.joined = now
        waiting = [one for one in ranks if one.progress.phase is Phase.JOINING]
        if self.joined is not None and waiting and now - self.joined > limits.join:
            return self._late(waiting[0], "the ranks did not find one another", limits.join)
        if now - self.began > limits.start:
            return self._late(min(ranks, key=lambda one: one.progress.phase), "not serving", limits.start)
        return None

    def _late(self, rank: _Rank, what: str, seconds: float) -> Reason:
        return reasons.late(rank.record, rank.progress, rank.fault, what, seconds)


def _reason(data: Mapping[str, Any], at: float) -> Reason:
    known = {name: data.get(name) for name in Reason.model_fields}
    known["what"] = str(known["what"] or "stopped")
    known["at"] = float(data.get("at") or at)
    return Reason.model_validate(known)
