"""The mixed load: streams that decode while long prompts arrive one after another, as an agent's do."""

from __future__ import annotations

import asyncio
import statistics

from glmspark.measure.record import Point
from glmspark.measure.rounds import Rounds, Samples, estimate
from glmspark.measure.statistics import quantile
from glmspark.measure.stream import Timed

ROUNDS = 3
"""Rounds with long prompts; one without goes before, which the others are held against."""


async def measure_mixed(rounds: Rounds, point: Point) -> Point:
    """Fill a mixed point in: decode and gaps are the decoding streams', ttft the long prompts'.

    Raises asyncio.CancelledError, after the point is filled in with what there is.
    """
    alone, together, arrived = Samples(), Samples(), list[Timed]()
    try:
        alone.add(await _decoding(rounds, point, None))
        for _ in range(ROUNDS):
            together.add(await _decoding(rounds, point, arrived))
            rounds.tick(point, together)
    finally:
        point.rounds = together.rounds
        point.decode, point.throughput = estimate(together.decode), estimate(together.throughput)
        firsts = [one.first for one in arrived if one.outcome == "ok" and one.first is not None]
        point.ttft = estimate(firsts)
        point.prompt_tokens = int(statistics.median([one.prompt_tokens for one in arrived] or [0]))
        point.tokens = int(statistics.median(together.tokens or [0]))
        if together.gaps:
            point.gap_p50, point.gap_p99 = quantile(together.gaps, 0.5), quantile(together.gaps, 0.99)
        for one in arrived:
            if one.outcome != "ok":
                together.failures[one.outcome] += 1
                together.first_failure = together.first_failure or one.detail
        point.failures = dict(alone.failures + together.failures)
        point.first_failure = alone.first_failure or together.first_failure
        if alone.decode and together.decode:
            share = statistics.median(together.decode) / statistics.median(alone.decode)
            point.note = f"decodes at {share:.2f} of its rate without long prompts"
    return point


async def _decoding(rounds: Rounds, point: Point, arrived: list[Timed] | None) -> list[Timed]:
    """One round of decoding streams; while they go on long prompts are sent, unless `arrived` is None."""
    answer = 2 * rounds.settings.answer
    bodies = [await rounds.body(point.kind, 0, answer) for _ in range(point.streams)]
    tasks = [asyncio.ensure_future(rounds.asker.ask(body)) for body in bodies]
    try:
        while arrived is not None and not all(task.done() for task in tasks):
            arrived.append(await rounds.asker.ask(await rounds.body(point.kind, point.wanted_depth, 1)))
            if arrived[-1].outcome != "ok":
                break
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
