"""Rounds of requests: so many streams at once, sent together, and what they make of one workload's point."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from glmspark.measure.counters import Counters, between, parse_counters
from glmspark.measure.record import Drafts, Estimate, Point
from glmspark.measure.statistics import Interval, interval, quantile
from glmspark.measure.stream import Asker, Timed, ask_all
from glmspark.measure.texts import prompt

FAILED_ROUNDS = 3
"""So many in a row, and a point is given up: the server is not going to answer."""

_LONGEST_WAIT = 10.0  # seconds that a Retry-After is obeyed

_SAMPLE = 4000  # characters of a kind's text that its tokens are counted on

_TEMPLATE = 24
"""Tokens that GLM's chat template adds to a question, and a few to spare."""


@dataclass(frozen=True)
class Settings:
    """How a run measures.

    answer: tokens of each answer. fixed_length: the server goes on past the end of the answer (vLLM's
    ignore_eos), so that every answer has as many. width: half the interval over the median at which a point
    is sure enough. least, most: rounds of a point that count. point_seconds: no round begins later.
    seed: parts this run's prompts from every other's.
    """

    seed: str
    answer: int = 128
    thinking: bool = False
    temperature: float = 0.0
    fixed_length: bool = True
    width: float = 0.03
    least: int = 5
    most: int = 15
    point_seconds: float = 120.0


@dataclass
class Samples:
    """What the rounds of a point gave; see record.Point for the units."""

    decode: list[float] = field(default_factory=list)
    throughput: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    first_failure: str | None = None
    rounds: int = 0

    def add(self, round_: Sequence[Timed]) -> bool:
        """Take a round in. One with a request that failed is no sample; it is counted. Whether it was one."""
        failed = [one for one in round_ if one.outcome != "ok"]
        for one in failed:
            self.failures[one.outcome] += 1
            self.first_failure = self.first_failure or one.detail
        if failed:
            return False
        self.rounds += 1
        rates = [one.rate for one in round_ if one.rate is not None]
        firsts = [one.first for one in round_ if one.first is not None]
        if rates:
            self.decode.append(statistics.median(rates))
        if firsts:
            self.ttft.append(statistics.median(firsts))
            self.prefill.append(
                statistics.median(one.prompt_tokens / one.first for one in round_ if one.first)
            )
        began = min(one.began for one in round_)
        ended = max(one.began + one.end for one in round_)
        self.throughput.append(sum(one.tokens for one in round_) / (ended - began))
        for one in round_:
            self.gaps.extend(b - a for a, b in zip(one.arrivals, one.arrivals[1:], strict=False))
            self.prompts.append(one.prompt_tokens)
            self.tokens.append(one.tokens)
        return True

    def main(self, streams: int) -> Interval | None:
        """The figure that decides whether a point is sure: one stream's decode rate, else the throughput."""
        samples = self.decode if streams == 1 and self.decode else self.throughput
        return interval(samples) if samples else None


def estimate(samples: Sequence[float]) -> Estimate | None:
    """Samples as the record has them; None for none."""
    positive = [sample for sample in samples if sample > 0]
    return Estimate.model_validate(interval(positive).to_json()) if positive else None


class Rounds:
    """Measures points at one endpoint. model: as requests name it. context: the server's limit in tokens."""

    def __init__(
        self,
        asker: Asker,
        model: str,
        settings: Settings,
        context: int | None,
        tick: Callable[[Point, Samples], None],
    ) -> None:
        self.asker, self.model, self.settings, self.context = asker, model, settings, context
        self.tick = tick
        self._characters: dict[str, float] = {}
        self._asked = 0

    async def characters(self, kind: str) -> float:
        """Characters a token of a kind of text takes, by the server's own tokenizer; 3 where it has none."""
        if kind not in self._characters:
            text = prompt(kind, "length", _SAMPLE)
            per_token = 3.0
            try:
                answer = await self.asker.post("/tokenize", {"model": self.model, "prompt": text})
                if answer.status_code == httpx.codes.OK:
                    per_token = len(text) / max(1, int(answer.json()["count"]))
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                pass  # not vLLM; the prompt's true length comes back with every answer
            self._characters[kind] = per_token
        return self._characters[kind]

    async def body(self, kind: str, depth: int, answer: int | None = None) -> dict[str, Any]:
        """A request no other is like, with about `depth` tokens before its question."""
        self._asked += 1
        characters = 0
        if depth:
            least = len(prompt(kind, "least"))
            per_token = await self.characters(kind)
            characters = max(0, int((depth - _TEMPLATE) * per_token) - least)
        return self.request(prompt(kind, f"{self.settings.seed} {self._asked}", characters), answer)

    def request(self, text: str, answer: int | None = None) -> dict[str, Any]:
        """A chat request under this run's settings."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": answer or self.settings.answer,
            "temperature": self.settings.temperature,
            "chat_template_kwargs": {"enable_thinking": self.settings.thinking},
        }
        if self.settings.fixed_length:
            body["ignore_eos"] = True
        return body

    async def counters(self) -> Counters:
        """The server's counters now; empty where it has none."""
        try:
            answer = await self.asker.get("/metrics")
            return parse_counters(answer.text) if answer.status_code == httpx.codes.OK else Counters()
        except (httpx.HTTPError, ValueError):
            return Counters()

    async def measure(self, point: Point) -> Point:
        """Fill a point in: one round to warm up, then as many as it takes. Cancelled, it keeps what there is.

        Raises asyncio.CancelledError, after the point is filled in.
        """
        samples, before, rates = Samples(), await self.counters(), self.settings
        try:
            failed, end = 0, None
            warm = await self.round(point)
            if any(one.outcome != "ok" for one in warm):
                samples.add(warm)
                failed = 1
            loop = asyncio.get_running_loop()
            end = loop.time() + rates.point_seconds
            before = await self.counters()
            while failed < FAILED_ROUNDS and samples.rounds < rates.most:
                if samples.rounds >= rates.least:
                    found = samples.main(point.streams)
                    if (found and found.half_width <= rates.width) or loop.time() > end:
                        break
                elif samples.rounds and loop.time() > end + rates.point_seconds:
                    break
                round_ = await self.round(point)
                failed = 0 if samples.add(round_) else failed + 1
                self.tick(point, samples)
                if failed:
                    await asyncio.sleep(_wait(round_))
        finally:
            self._fill(point, samples)
            if not _cancelled():
                self._count(point, before, await self.counters())
        return point

    async def round(self, point: Point) -> list[Timed]:
        """Send a round of a point and wait for it."""
        bodies = [await self.body(point.kind, point.wanted_depth) for _ in range(point.streams)]
        return await ask_all(self.asker, bodies)

    def _fill(self, point: Point, samples: Samples) -> None:
        point.rounds = samples.rounds
        point.prompt_tokens = int(statistics.median(samples.prompts)) if samples.prompts else 0
        point.tokens = int(statistics.median(samples.tokens)) if samples.tokens else 0
        point.decode, point.throughput = estimate(samples.decode), estimate(samples.throughput)
        point.ttft, point.prefill = estimate(samples.ttft), estimate(samples.prefill)
        if samples.gaps:
            point.gap_p50, point.gap_p99 = quantile(samples.gaps, 0.5), quantile(samples.gaps, 0.99)
        found = samples.main(point.streams)
        point.enough = found is not None and found.half_width <= self.settings.width
        point.failures, point.first_failure = dict(samples.failures), samples.first_failure

    def _count(self, point: Point, before: Counters, after: Counters) -> None:
        grown = between(before, after)
        if grown.length is not None:
            point.drafts = Drafts(
                acceptance=grown.acceptance, length=grown.length, per_position=list(grown.per_position)
            )
        point.cache_hits, point.preemptions = grown.cache_hits, grown.preemptions


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _wait(round_: Sequence[Timed]) -> float:
    """Seconds until the next round after one that failed: what the server asks for, within limits."""
    asked = [one.retry_after for one in round_ if one.retry_after]
    try:
        return min(_LONGEST_WAIT, max(0.0, *(float(value) for value in asked))) if asked else 0.5
    except ValueError:  # a date
        return 1.0
