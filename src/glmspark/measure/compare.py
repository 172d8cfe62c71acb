"""Two endpoints or two settings, measured in turns, so that what drifts on the machines drifts for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from glmspark.measure.record import Conditions, Estimate, Point
from glmspark.measure.rounds import FAILED_ROUNDS, Rounds, Samples
from glmspark.measure.statistics import ratio

_FIGURES: tuple[Literal["decode", "throughput", "ttft"], ...] = ("decode", "throughput", "ttft")


class Comparison(BaseModel):
    """B over A by figure: geometric mean of the pairs' ratios and its 95 % interval.

    Rates (decode, throughput) above 1 are B faster, a time (ttft) above 1 is B slower. differs: whether the
    interval leaves out 1.
    """

    model_config = ConfigDict(extra="forbid")

    record: Literal["glmspark-compare"] = "glmspark-compare"
    version: Literal[1] = 1
    a: Conditions
    b: Conditions
    kind: str
    streams: int
    depth: int
    pairs: int = 0
    ratios: dict[str, Estimate] = {}
    differs: dict[str, bool] = {}
    failures: dict[str, int] = {}
    first_failure: str | None = None


async def compare(
    a: tuple[Rounds, Conditions],
    b: tuple[Rounds, Conditions],
    point: Point,
    pairs: int,
    tick: Callable[[Comparison], None],
) -> Comparison:
    """Measure a point at both in turns (A B, B A, A B ...), after a round each to warm up.

    A pair of which a round failed does not count; after three such in a row it ends.
    """
    found = Comparison(a=a[1], b=b[1], kind=point.kind, streams=point.streams, depth=point.wanted_depth)
    sides = (a[0], b[0])
    taken: tuple[Samples, Samples] = (Samples(), Samples())
    for side in sides:
        await side.round(point)
    failed = number = 0
    while found.pairs < pairs and failed < FAILED_ROUNDS:
        pair = {which: Samples() for which in ((0, 1) if number % 2 == 0 else (1, 0))}
        number += 1
        for which, samples in pair.items():
            samples.add(await sides[which].round(point))
            for outcome, count in samples.failures.items():
                found.failures[outcome] = found.failures.get(outcome, 0) + count
            found.first_failure = found.first_failure or samples.first_failure
        if not all(samples.rounds for samples in pair.values()):
            failed += 1
            await asyncio.sleep(0.5)
            continue
        failed = 0
        found.pairs += 1
        for figure in _FIGURES:
            for which in (0, 1):
                getattr(taken[which], figure).extend(getattr(pair[which], figure))
        _ratios(found, taken)
        tick(found)
    return found


def _ratios(found: Comparison, taken: tuple[Samples, Samples]) -> None:
    for figure in _FIGURES:
        first, second = getattr(taken[0], figure), getattr(taken[1], figure)
        if len(first) == len(second) >= 3:
            interval = ratio(list(zip(first, second, strict=True)))
            found.ratios[figure] = Estimate.model_validate(interval.to_json())
            found.differs[figure] = not interval.low <= 1 <= interval.high
