"""`glmspark bench`: which points a run measures, in which order, and the record it leaves."""

from __future__ import annotations

import asyncio
import resource
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import httpx

from glmspark import __version__
from glmspark.errors import GlmsparkError
from glmspark.measure.mixed import measure_mixed
from glmspark.measure.record import Conditions, Point, Record
from glmspark.measure.rounds import Rounds, Samples, Settings
from glmspark.measure.stream import Asker
from glmspark.measure.texts import KINDS

DEPTHS = (1024, 4096, 16384, 65536, 262144)
STREAMS = (2, 4, 8)
WORKLOADS = ("kinds", "depth", "concurrency", "mixed")

_MIXED_DEPTH = 0.5
"""The long prompts of the mixed load, as a share of what the context leaves (at most the deepest point)."""


@dataclass(frozen=True)
class Wanted:
    """What to measure. depths: prompt lengths in tokens; streams: how many at once. kind: of the points that
    are not about kinds."""

    workloads: Sequence[str] = WORKLOADS
    kinds: Sequence[str] = KINDS
    kind: str = "prose"
    depths: Sequence[int] = DEPTHS
    streams: Sequence[int] = STREAMS


class Watcher(Protocol):
    """Sees a run go on."""

    def round(self, point: Point, samples: Samples) -> None:
        """A round of a point is over."""

    def point(self, point: Point) -> None:
        """A point is over."""


def points_of(wanted: Wanted, context: int | None, answer: int) -> list[Point]:
    """The points of a run in order; depths that do not fit the context beside an answer are left out."""
    most = (context - answer - 64) if context else None
    depths = [depth for depth in wanted.depths if most is None or depth <= most]
    points = []
    if "kinds" in wanted.workloads:
        points += [Point(workload="kind", kind=kind, streams=1, wanted_depth=0) for kind in wanted.kinds]
    if "depth" in wanted.workloads:
        points += [Point(workload="depth", kind=wanted.kind, streams=1, wanted_depth=one) for one in depths]
    if "concurrency" in wanted.workloads:
        points += [
            Point(workload="concurrency", kind=wanted.kind, streams=count, wanted_depth=0)
            for count in wanted.streams
        ]
    if "mixed" in wanted.workloads:
        depth = (
            max(depths, default=0) if most is None else min(max(depths, default=0), int(most * _MIXED_DEPTH))
        )
        points.append(
            Point(
                workload="mixed", kind=wanted.kind, streams=max(wanted.streams, default=1), wanted_depth=depth
            )
        )
    return points


async def served(asker: Asker, model: str | None) -> tuple[str, int | None, str | None]:
    """The model's name, its context in tokens and the engine's version, as the server says.

    Raises GlmsparkError when it does not answer, or serves no such model.
    """
    try:
        answer = await asker.get("/v1/models")
        if answer.status_code != httpx.codes.OK:
            raise GlmsparkError(
                f"{asker.url}/models answers HTTP {answer.status_code}",
                seen=answer.text[:300],
                next="give the key in GLMSPARK_API_KEY" if answer.status_code == 401 else "is it ready?",
            )
        models = {one["id"]: one.get("max_model_len") for one in answer.json()["data"]}
        version = await asker.get("/version")
        engine = str(version.json().get("version")) if version.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise GlmsparkError(
            f"{asker.url} does not answer like an OpenAI endpoint",
            seen=str(error) or type(error).__name__,
            next="name a deployment (`glmspark status`) or a URL that ends in /v1",
        ) from None
    name = model or next(iter(models), None)
    if name not in models:
        raise GlmsparkError(
            f"{asker.url} serves no model {name}" if name else f"{asker.url} serves no model",
            next=f"it serves {', '.join(models)}" if models else "start it first",
        )
    return str(name), models[name], f"vLLM {engine}" if engine else None


class Bench:
    """One run against one endpoint. path: where its record is kept, written after every point."""

    def __init__(
        self,
        asker: Asker,
        conditions: Conditions,
        settings: Settings,
        watcher: Watcher,
        path: Path | None,
    ) -> None:
        self._watcher, self._path = watcher, path
        self.record = Record(
            glmspark=__version__,
            began=datetime.now(UTC).isoformat(timespec="seconds"),
            conditions=conditions,
        )
        self._rounds = Rounds(asker, conditions.model, settings, conditions.context, watcher.round)
        self._began = time.monotonic()
        self._cpu = _cpu()

    async def run(self, points: Sequence[Point]) -> Record:
        """Measure the points. Cancelled, the record keeps what there is and says so."""
        try:
            for point in points:
                self.record.points.append(point)
                if point.workload == "mixed":
                    await measure_mixed(self._rounds, point)
                else:
                    await self._rounds.measure(point)
                self._watcher.point(point)
                self._keep("running")
        except asyncio.CancelledError:
            self._keep("interrupted")
            raise
        self._keep("whole")
        return self.record

    def _keep(self, ended: str) -> None:
        self.record.ended = ended
        self.record.seconds = round(time.monotonic() - self._began, 3)
        self.record.own_cpu_s = round(_cpu() - self._cpu, 3)
        if self._path is not None:
            self.record.write(self._path)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def new_seed() -> str:
    """A seed that no earlier run had: prompts in the server's prefix cache would make it look fast."""
    return secrets.token_hex(4)
