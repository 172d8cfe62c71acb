"""Tokens a second with a range, what a step's time goes into, and what the hardware would allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import exp, sqrt
from typing import Any

from glmspark.plan.speed.collectives import Collective
from glmspark.plan.speed.constants import Constants, load_calibration, load_constants
from glmspark.plan.speed.prefill import prefill_parts, prefill_seconds
from glmspark.plan.speed.run import Run
from glmspark.plan.speed.step import decode_limit, step_collectives, step_parts
from glmspark.plan.speed.text import Text, accepted, expected_tokens, tokens_spread

__all__ = ["Prediction", "Range", "predict", "spread_of"]

_WIDE = 1.645
"""Sigmas: a range of nine in ten."""


@dataclass(frozen=True)
class Range:
    """A prediction: nine of ten measurements should be between low and high."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, sigma: float) -> Range:
        """value, with sigma of its logarithm."""
        factor = exp(_WIDE * sigma)
        return cls(value, value / factor, value * factor)

    def to_json(self) -> dict[str, float]:
        """Data, rounded."""
        return {"value": round(self.value, 4), "low": round(self.low, 4), "high": round(self.high, 4)}


@dataclass(frozen=True)
class Prediction:
    """decode: tokens a second of all streams. stream: of one. parts: seconds of a decoding step. tokens:
    that a step makes. prefill: tokens of a prompt a second. ttft: seconds to the first token of such a
    prompt. limit: tokens a second if memory streamed at its full rate and nothing else took time. share: of
    it reached. collectives: of a step."""

    streams: int
    depth: int
    text: str
    prompt: int
    decode: Range
    stream: Range
    tokens: float
    step: float
    parts: Mapping[str, float]
    prefill: Range
    prefill_parts: Mapping[str, float]
    ttft: Range
    limit: float
    collectives: tuple[Collective, ...] = ()

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.decode.value / self.limit

    def to_json(self) -> dict[str, Any]:
        """Data."""
        ranges = {name: getattr(self, name).to_json() for name in ("decode", "stream", "prefill", "ttft")}
        return {**asdict(self), **ranges, "share_of_limit": round(self.share, 4)}


def spread_of(
    run: Run, streams: float, depth: float, constants: Constants, sigmas: Mapping[str, float]
) -> float:
    """Sigma of the logarithm of a step's time, from what is not known of the constants."""
    base = sum(step_parts(run, streams=streams, depth=depth, constants=constants).values())
    total = 0.0
    for name, sigma in sigmas.items():
        if not hasattr(constants, name):
            continue
        moved = replace(constants, **{name: getattr(constants, name) * 1.1})
        changed = sum(step_parts(run, streams=streams, depth=depth, constants=moved).values())
        total += ((changed / base - 1) / 0.0953 * sigma) ** 2
    return sqrt(total)


def predict(
    run: Run,
    *,
    streams: int = 1,
    depth: int = 1000,
    prompt: int = 2048,
    drafter: str = "",
    text: Text = "mixed",
    tokens: float | None = None,
    constants: Constants | None = None,
) -> Prediction:
    """What a run will do. streams: requests at once. depth: tokens before the new ones. prompt: of the
    request whose first token is timed. drafter: whose acceptance applies, see `text.ACCEPTANCE`. tokens:
    that a step makes, where that is known."""
    constants = constants or load_constants()
    calibration = load_calibration()
    spread, rates = calibration["spread"], calibration["acceptance"]
    varied = 0.0
    if tokens is None and not run.drafts:
        tokens = 1.0
    elif tokens is None:
        tokens = expected_tokens(accepted(drafter, text, rates), run.drafts)
        varied = tokens_spread(drafter, text, run.drafts, rates, spread["text"])
    parts = step_parts(run, streams=streams, depth=depth, constants=constants)
    step = sum(parts.values())
    own = spread_of(run, streams, depth, constants, calibration["sigmas"])
    sigma = sqrt(spread["stated"] ** 2 + own**2 + varied**2)
    seconds = prefill_seconds(run, prompt, constants)
    wide = spread["prefill"]
    first = seconds + step
    return Prediction(
        streams=streams,
        depth=depth,
        text=text if run.drafts else "any",
        prompt=prompt,
        decode=Range.around(streams * tokens / step, sigma),
        stream=Range.around(tokens / step, sigma),
        tokens=tokens,
        step=step,
        parts=parts,
        prefill=Range.around(prompt / seconds, wide),
        prefill_parts=prefill_parts(run, tokens=min(run.chunk, prompt), depth=0.0, constants=constants),
        ttft=Range.around(first, wide),
        limit=decode_limit(run, streams=streams, depth=depth, tokens=tokens, overlap=constants.overlap),
        collectives=step_collectives(run, streams=streams, constants=constants),
    )
