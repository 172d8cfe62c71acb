"""A running deployment's speed beside what was predicted, and the likeliest cause where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from glmspark.plan.speed import Link, Run, predict
from glmspark.plan.speed.text import KINDS

__all__ = ["Comparison", "Seen", "compare"]

USUAL_CLOCK = 2000.0
"""MHz of a GB10 at work: people cap it at 2,000 to 2,200 without loss; stuck ones were at 721 and below."""
_LOW_CLOCK = 1500.0
_NEAR = 1.35


@dataclass(frozen=True)
class Seen:
    """What a deployment does now. speed: tokens a second of all requests. streams: requests running.
    tokens: that a step makes, where something drafts. network: what NCCL's log says it uses. eager: whether
    the log says so. clock: MHz of the slowest GPU. None for what is not known."""

    speed: float
    streams: float
    tokens: float | None = None
    network: str | None = None
    eager: bool | None = None
    clock: float | None = None


@dataclass(frozen=True)
class Comparison:
    """verdict: as predicted, slower or faster. cause: the likeliest, in words. proven: whether something
    was seen that says so, and not only a speed that it would explain."""

    measured: float
    predicted: float
    low: float
    high: float
    streams: int
    verdict: str
    cause: str | None = None
    proven: bool = False
    next: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Data."""
        return {
            "measured": round(self.measured, 2),
            "predicted": round(self.predicted, 2),
            "low": round(self.low, 2),
            "high": round(self.high, 2),
            "streams": self.streams,
            "verdict": self.verdict,
            "cause": self.cause,
            "proven": self.proven,
            "next": self.next,
        }


@dataclass(frozen=True)
class _Cause:
    """speed: that it would lead to. seen: True or False where that is known."""

    what: str
    advice: str
    speed: float
    seen: bool | None


def compare(run: Run, drafter: str, seen: Seen, *, depth: int = 1000) -> Comparison:
    """Compare. drafter: whose acceptance applies. Texts of every kind are allowed for where a step's tokens
    are not known."""
    streams = max(round(seen.streams), 1)
    low, middle, high = _range(run, drafter, streams, depth, seen.tokens)
    if seen.speed > high:
        return Comparison(seen.speed, middle, low, high, streams, "faster")
    if seen.speed >= low:
        return Comparison(seen.speed, middle, low, high, streams, "as predicted")
    causes = list(_causes(run, drafter, seen, streams, depth, middle))
    found = next((one for one in causes if one.seen), None)
    if found is None:
        open_ = [one for one in causes if one.seen is None and 1 / _NEAR <= seen.speed / one.speed <= _NEAR]
        found = min(open_, key=lambda one: abs(seen.speed / one.speed - 1), default=None)
    return Comparison(
        seen.speed,
        middle,
        low,
        high,
        streams,
        "slower",
        None if found is None else found.what,
        bool(found is not None and found.seen),
        None if found is None else found.advice,
    )


def _range(
    run: Run, drafter: str, streams: int, depth: int, tokens: float | None
) -> tuple[float, float, float]:
    if tokens is not None or not run.drafts:
        one = predict(run, streams=streams, depth=depth, tokens=tokens or 1.0).decode
        return one.low, one.value, one.high
    every = {
        text: predict(run, streams=streams, depth=depth, drafter=drafter, text=text).decode for text in KINDS
    }
    return (
        min(one.low for one in every.values()),
        every["mixed"].value,
        max(one.high for one in every.values()),
    )


def _causes(run: Run, drafter: str, seen: Seen, streams: int, depth: int, middle: float) -> Iterator[_Cause]:
    """The likeliest first: those that were seen most often on Sparks."""

    def speed(changed: Run) -> float:
        return _range(changed, drafter, streams, depth, seen.tokens)[1]

    if run.link.kind in ("roce", "one-shot"):
        sockets = None if seen.network is None else "socket" in seen.network.lower()
        slow = speed(replace(run, link=Link("tcp", run.link.gbit, run.link.ring)))
        yield _Cause(
            "NCCL uses sockets where RDMA was planned",
            "`glmspark doctor --cluster` says what keeps RDMA off",
            slow,
            sockets,
        )
    low = None if seen.clock is None else seen.clock < _LOW_CLOCK
    clock = seen.clock if low else 721.0
    yield _Cause(
        "a GPU's clock is low" + (f": {seen.clock:.0f} MHz" if low else ""),
        "reboot that node, else power-cycle it; `glmspark doctor --load 10` shows clocks",
        middle * (clock or USUAL_CLOCK) / USUAL_CLOCK,
        low,
    )
    if run.graphs:
        yield _Cause(
            "it runs eagerly where CUDA graphs were planned",
            "look for enforce_eager and for capture sizes below requests x (1 + draft tokens)",
            speed(replace(run, graphs=False)),
            seen.eager,
        )
    if run.drafts:
        refused = predict(run, streams=streams, depth=depth, tokens=1.2).decode.value
        least = predict(run, streams=1, depth=depth, drafter=drafter, text="prose").tokens * 0.7
        yield _Cause(
            "few drafted tokens are accepted",
            "another drafter or fewer tokens: `glmspark plan` compares them",
            refused,
            None if seen.tokens is None else seen.tokens < least,
        )
