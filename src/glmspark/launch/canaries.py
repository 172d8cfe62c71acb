"""Ready means proven: the canaries of a recipe, run against an endpoint, each with a verdict of its own.

A probe is a kind of canary: how to ask, how to judge, and what is likely wrong when it fails. The recipe says
what to ask and what the right answer is. Probes run in three waves: one plain answer first, so that a dead
endpoint is known at once; then all others together, as users would come; then those that need the endpoint to
themselves. A probe that watches something while others work (ranks, and a fabric's counters) spans all waves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from glmspark.errors import GlmsparkError
from glmspark.launch.record import Deployment, Verdict


class Wave(IntEnum):
    """When a probe runs."""

    FIRST = 0
    TOGETHER = 1
    ALONE = 2
    THROUGHOUT = 3


@dataclass(frozen=True)
class Finding:
    """What a probe found. evidence: one line people read, for a pass as well as for a failure."""

    passed: bool
    evidence: str


@dataclass(frozen=True)
class Answer:
    """A finished answer. tool_calls: (name, arguments as JSON text)."""

    text: str
    reasoning: str
    tool_calls: tuple[tuple[str, str], ...]
    finish: str
    prompt_tokens: int
    tokens: int


class ProbeError(GlmsparkError):
    """The endpoint did not answer as an endpoint should: no connection, no answer in time, an HTTP error."""


@dataclass(frozen=True)
class Target:
    """What is to be proven.

    ask: one request at temperature 0 (see client.Client.ask). count: tokens in a text. census: what lives of
    each rank, from its number to the titles of its processes. served: set when all other probes are done.
    """

    deployment: Deployment
    ask: Callable[..., Awaitable[Answer]]
    count: Callable[[str], Awaitable[int]]
    census: Callable[[], Mapping[int, list[str]]]
    served: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Probe:
    """A kind of canary. The likely causes of its failure are the catalogue's (symptoms with that canary)."""

    kind: str
    wave: Wave
    run: Callable[[Target, Any], Awaitable[Finding]]


async def prove(
    target: Target, canaries: list[Any], probes: Mapping[str, Probe], tell: Callable[[list[Verdict]], None]
) -> list[Verdict]:
    """Run the canaries and return their verdicts in the canaries' order.

    canaries: objects of glmspark.config.canaries. tell: called after each verdict with those so far. When a
    canary of the first wave gets no answer at all, the others are not tried and fail with that reason.
    """
    verdicts: dict[int, Verdict] = {}

    def note(index: int, verdict: Verdict) -> None:
        verdicts[index] = verdict
        tell([verdicts[key] for key in sorted(verdicts)])

    async def one(index: int) -> bool:
        verdict, answered = await _judge(target, canaries[index], probes[canaries[index].probe])
        note(index, verdict)
        return answered

    def of(wave: Wave) -> list[int]:
        return [index for index, canary in enumerate(canaries) if probes[canary.probe].wave is wave]

    spanning = [asyncio.create_task(one(index)) for index in of(Wave.THROUGHOUT)]
    await asyncio.sleep(0)  # let them take their first look
    try:
        answered = all([await one(index) for index in of(Wave.FIRST)])
        rest = of(Wave.TOGETHER) + of(Wave.ALONE)
        if answered:
            await asyncio.gather(*(one(index) for index in of(Wave.TOGETHER)))
            for index in of(Wave.ALONE):
                await one(index)
        else:
            for index in rest:
                canary = canaries[index]
                untried = Finding(False, "not tried: the endpoint gave no answer")
                note(index, _verdict(canary, untried, 0.0, tried=False))
    finally:
        target.served.set()
        await asyncio.gather(*spanning)
    return [verdicts[key] for key in sorted(verdicts)]


async def _judge(target: Target, canary: Any, probe: Probe) -> tuple[Verdict, bool]:
    begin = time.monotonic()
    answered = True
    try:
        async with asyncio.timeout(None if probe.wave is Wave.THROUGHOUT else canary.timeout_s):
            finding = await probe.run(target, canary)
    except TimeoutError:
        answered = False
        finding = Finding(False, f"no answer within {canary.timeout_s} s")
    except ProbeError as error:
        answered = False
        finding = Finding(False, error.message)
    return _verdict(canary, finding, time.monotonic() - begin), answered


def _verdict(canary: Any, finding: Finding, seconds: float, *, tried: bool = True) -> Verdict:
    return Verdict(
        name=canary.name or canary.probe,
        probe=canary.probe,
        passed=finding.passed,
        seconds=round(seconds, 3),
        evidence=finding.evidence,
        causes=[] if finding.passed else [*canary.causes, *(_causes(canary.probe) if tried else ())],
    )


def _causes(kind: str) -> tuple[str, ...]:
    from glmspark.symptoms.match import causes_of  # read when a canary has failed only

    return causes_of(kind)


def shown(text: str, most: int = 160) -> str:
    """A text for one line of evidence: quoted, its middle left out when it is long."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return repr(text)
