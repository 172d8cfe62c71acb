"""A benchmark's record: one JSON file with what was measured, how sure it is, and what it holds for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from glmspark.config.files import write_atomic
from glmspark.errors import GlmsparkError


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Estimate(_Part):
    """A median and where a repetition's median would fall in 95 of 100 cases; unknown with few samples."""

    median: float
    low: float | None
    high: float | None
    samples: int


class Drafts(_Part):
    """Speculation while a point was measured; see counters.Between."""

    acceptance: float | None = None
    length: float | None = None
    per_position: list[float] = []


class Point(_Part):
    """One workload: so many streams at once, each with a prompt of a kind and length.

    prompt_tokens and tokens: medians of what the server counted. Rates in tokens a second, times in seconds.
    decode: of one stream after its first token. throughput: of all streams, from the first sent to the last
    token. prefill: prompt tokens over the time to the first token. gap: between the events of a stream.
    enough: whether the interval of the main figure became as narrow as asked. failures: outcome -> count.
    """

    workload: Literal["depth", "kind", "concurrency", "mixed"]
    kind: str
    streams: int
    wanted_depth: int
    prompt_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    decode: Estimate | None = None
    throughput: Estimate | None = None
    ttft: Estimate | None = None
    prefill: Estimate | None = None
    gap_p50: float | None = None
    gap_p99: float | None = None
    enough: bool = False
    drafts: Drafts | None = None
    cache_hits: float | None = None
    preemptions: float | None = None
    failures: dict[str, int] = {}
    first_failure: str | None = None
    note: str | None = None


class Conditions(_Part):
    """What the figures hold for."""

    url: str
    model: str
    deployment: str | None = None
    lock_digest: str | None = None
    layout: str | None = None
    engine: str | None = None
    context: int | None = None
    thinking: bool = False
    temperature: float = 0.0
    answer_tokens: int = 0
    fixed_length: bool = True
    seed: str = ""


class Record(_Part):
    """A whole run. own_cpu_s: what measuring itself took of the cores. ended: "whole", "interrupted"
    or what made it stop."""

    record: Literal["glmspark-bench"] = "glmspark-bench"
    version: Literal[1] = 1
    glmspark: str
    began: str
    seconds: float = 0.0
    own_cpu_s: float = 0.0
    ended: str = "running"
    conditions: Conditions
    points: list[Point] = []

    def write(self, path: Path) -> None:
        """Write the whole of it, or leave what was there. Raises OSError."""
        write_atomic(path, self.model_dump_json(indent=1).encode() + b"\n")


def read_record(path: Path) -> Record:
    """A record from a file. Raises GlmsparkError for a file that is none."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except OSError as error:
        raise GlmsparkError(
            f"{path}: {error.strerror}", next="name a file that `glmspark bench` wrote"
        ) from None
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise GlmsparkError(
            f"{path} is no benchmark record: {where}: {first['msg']}",
            next="name a file that `glmspark bench` wrote",
        ) from None
