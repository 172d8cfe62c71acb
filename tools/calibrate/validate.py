"""Leave one source out: how far off are predictions of measurements by people whose rows were not looked
at, nor what they say of the constants?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glmspark.plan.speed.constants import Constants
from glmspark.plan.speed.predict import spread_of
from glmspark.plan.speed.text import tokens_spread
from tools.calibrate.fit import Fit, fit, fit_prefill, predicted, predicted_prefill
from tools.calibrate.rows import Case, PrefillCase

__all__ = ["Outcome", "Spread", "decode_outcomes", "prefill_noise", "prefill_outcomes", "spreads"]

SHARE = 0.95
"""Of the rows that a range is made from, which it should hold; of rows by others it then holds about nine
in ten. Ranges are made from other sources' residuals: the share of held-out rows inside is a result, not a
setting."""


@dataclass(frozen=True)
class Spread:
    """stated: sigma of the logarithm by which measurements part from predictions. text: sigma of the logit of
    acceptance between texts of one kind."""

    stated: float
    text: float


@dataclass(frozen=True)
class Outcome:
    """A prediction of a held-out row, with its range."""

    case: Case | PrefillCase
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Relative, above 0 where the prediction is too high."""
        return self.predicted / self.case.observed - 1

    @property
    def inside(self) -> bool:
        """Whether the measurement is inside the range."""
        return self.low <= self.case.observed <= self.high


def spreads(cases: Sequence[Case], found: Fit) -> Spread:
    """The spread that, with the constants' own uncertainty, makes ranges hold SHARE of these rows."""

    def least(group: list[Case], values: np.ndarray, make: Callable[[float], Spread]) -> float:
        for value in values:
            trial = make(float(value))
            if np.mean([outcome(case, found, trial).inside for case in group]) >= SHARE:
                return float(value)
        return float(values[-1])

    known = [case for case in cases if case.tokens]
    stated = least(known, np.arange(0.12, 1.0, 0.01), lambda value: Spread(value, 0.0))
    by_text = [case for case in cases if not case.tokens]
    return Spread(stated, least(by_text, np.arange(0.2, 2.0, 0.02), lambda value: Spread(stated, value)))


def decode_outcomes(cases: Sequence[Case]) -> list[Outcome]:
    """Every row, predicted from what other sources measured and say."""
    found = []
    for source in sorted({case.source for case in cases}):
        others = [case for case in cases if case.source != source]
        learned = fit(others, without=source)
        spread = spreads(others, learned)
        found += [outcome(case, learned, spread) for case in cases if case.source == source]
    return sorted(found, key=lambda one: one.case.number)


def outcome(case: Case, learned: Fit, spread: Spread) -> Outcome:
    """One prediction with its range."""
    value = predicted(case, learned)
    own = spread_of(case.run, case.streams, case.depth, learned.constants, learned.sigmas)
    varied = 0.0
    if not case.tokens:
        varied = tokens_spread(case.drafter, case.text, case.run.drafts, learned.rates, spread.text)
    factor = float(np.exp(1.645 * (spread.stated**2 + own**2 + varied**2) ** 0.5))
    return Outcome(case, value, value / factor, value * factor)


def prefill_noise(cases: Sequence[PrefillCase], constants: Constants) -> float:
    """Sigma of the range of prefill that nine of ten of these rows are in."""
    off = [abs(np.log(predicted_prefill(case, constants) / case.observed)) for case in cases]
    return float(np.quantile(off, 0.9) / 1.645)


def prefill_outcomes(cases: Sequence[PrefillCase], decode: Fit) -> list[Outcome]:
    """Likewise of prefill. decode: the constants of decoding, of all rows."""
    found = []
    for source in sorted({case.source for case in cases}):
        others = [case for case in cases if case.source != source]
        constants = replace(decode.constants, **fit_prefill(others, without=source).values)
        noise = prefill_noise(others, constants) if others else 1.0
        for case in cases:
            if case.source == source:
                value = predicted_prefill(case, constants)
                factor = float(np.exp(1.645 * noise))
                found.append(Outcome(case, value, value / factor, value * factor))
    return sorted(found, key=lambda one: one.case.number)
