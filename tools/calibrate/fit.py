"""Maximum a posteriori: every constant starts at what its source says and moves as far as the rows insist."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log, sqrt

import numpy as np

from glmspark.plan.speed.constants import PRIORS, Constants, Prior
from glmspark.plan.speed.prefill import prefill_seconds
from glmspark.plan.speed.step import step_parts
from glmspark.plan.speed.text import ACCEPTANCE, accepted, expected_tokens
from tools.calibrate.rows import Case, PrefillCase

__all__ = ["Fit", "Prefill", "fit", "fit_prefill", "predicted", "predicted_prefill", "said_by"]

NOISE = 0.12
"""What measurements of the same thing differ by, from place to place: one sigma of the logarithm."""
TEXT_NOISE = 0.20
"""Likewise where the text itself differs."""
LOOSE = 1.5
"""Sigma of a constant whose own source is held out: what that source says of it hardly counts then."""
PREFILL = ("compute", "prefill_layer", "prefill_context")
DECODE = tuple(name for name in PRIORS if name not in PREFILL)


@dataclass(frozen=True)
class Fit:
    """constants: of the speed model. rates: acceptance. sigmas: of the logarithm of each constant, of the
    logit of each rate, after the rows were seen."""

    constants: Constants
    rates: Mapping[str, float]
    sigmas: Mapping[str, float]


@dataclass(frozen=True)
class Prefill:
    """The constants of prefill."""

    values: Mapping[str, float]
    sigmas: Mapping[str, float]


def fit(cases: Sequence[Case], *, without: str = "") -> Fit:
    """The constants that explain the decoding rows best, given what is known of them. without: a source
    that is held out, "owner/name": what it says of constants is held back, too."""
    rates = list(ACCEPTANCE)

    def made(point: np.ndarray) -> Fit:
        shifts = dict(zip(DECODE, point, strict=False))
        constants = _constants(shifts)
        moved = zip(rates, point[len(DECODE) :], strict=True)
        return Fit(constants, {name: _moved(ACCEPTANCE[name], shift) for name, shift in moved}, {})

    def residuals(point: np.ndarray) -> np.ndarray:
        candidate = made(point)
        found = []
        for case in cases:
            noise = NOISE if case.tokens else TEXT_NOISE
            found.append(_tame(log(predicted(case, candidate) / case.observed) / noise))
            if case.tokens and case.run.drafts and case.drafter and case.text != "mixed":
                rate = accepted(case.drafter, case.text, candidate.rates)
                expected = expected_tokens(rate, case.run.drafts)
                found.append(_tame(log(expected / case.tokens) / TEXT_NOISE))
        return np.array([*found, *_pulls(point, [*DECODE, *rates], without)])

    point, sigmas = _solve(residuals, len(DECODE) + len(rates))
    best = made(point)
    return Fit(best.constants, best.rates, dict(zip([*DECODE, *rates], sigmas, strict=True)))


def fit_prefill(cases: Sequence[PrefillCase], *, without: str = "") -> Prefill:
    """The constants that explain the prefill rows best. without: as above."""

    def residuals(point: np.ndarray) -> np.ndarray:
        constants = _constants(dict(zip(PREFILL, point, strict=True)))
        found = [
            _tame(log(predicted_prefill(case, constants) / case.observed) / TEXT_NOISE) for case in cases
        ]
        return np.array([*found, *_pulls(point, PREFILL, without)])

    point, sigmas = _solve(residuals, len(PREFILL))
    constants = asdict(_constants(dict(zip(PREFILL, point, strict=True))))
    return Prefill({name: constants[name] for name in PREFILL}, dict(zip(PREFILL, sigmas, strict=True)))


def predicted(case: Case, found: Fit) -> float:
    """Tokens a second of a row by these constants."""
    tokens = case.tokens
    if tokens is None:
        tokens = expected_tokens(accepted(case.drafter, case.text, found.rates), case.run.drafts)
    parts = step_parts(case.run, streams=case.streams, depth=case.depth, constants=found.constants)
    return case.streams * tokens / sum(parts.values())


def predicted_prefill(case: PrefillCase, constants: Constants) -> float:
    """Tokens of the prompt a second."""
    return case.prompt / prefill_seconds(case.run, case.prompt, constants, chunk=case.chunk)


def _constants(shifts: Mapping[str, float]) -> Constants:
    return Constants(**{name: prior.value * exp(shifts.get(name, 0.0)) for name, prior in PRIORS.items()})


def _moved(prior: Prior, shift: float) -> float:
    return 1 / (1 + exp(-(log(prior.value / (1 - prior.value)) + shift)))


def _pulls(point: np.ndarray, names: Sequence[str], without: str) -> list[float]:
    """How far each constant is from its source, in sigmas."""
    known = {**PRIORS, **ACCEPTANCE}
    sigmas = [LOOSE if said_by(known[name], without) else known[name].sigma for name in names]
    return [float(shift) / sigma for shift, sigma in zip(point, sigmas, strict=True)]


def said_by(prior: Prior, source: str) -> bool:
    """Whether a constant's value was taken from a source of measurements, named "owner/name"."""
    owner, _, name = source.partition("/")
    if not name or "/" in name:
        return False
    return any(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", prior.source) for part in (owner, name))


def _tame(value: float) -> float:
    """A residual whose pull ends: what is far off says that something else was different, not the
    constants."""
    return float(value / sqrt(1 + (value / 2.5) ** 2))


def _solve(residuals: Callable[[np.ndarray], np.ndarray], count: int) -> tuple[np.ndarray, list[float]]:
    """The best point and the standard deviations around it."""
    from scipy.optimize import least_squares  # a second of a core that reading rows does without

    solved = least_squares(residuals, np.zeros(count), x_scale=0.3, max_nfev=40, ftol=1e-3, xtol=1e-3)
    spread = np.linalg.inv(solved.jac.T @ solved.jac)
    return solved.x, [float(value) for value in np.sqrt(np.diag(spread))]
