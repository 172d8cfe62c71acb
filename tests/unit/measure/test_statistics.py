"""Medians and their intervals."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.measure.statistics import interval, quantile, ratio, t_point

positive = st.floats(1e-6, 1e9, allow_nan=False)


# Any statistics book's table.
@pytest.mark.parametrize(
    ("freedom", "point"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045)]
)
def test_the_t_distribution_is_the_tables(freedom: int, point: float) -> None:
    assert t_point(freedom) == pytest.approx(point, rel=0.01)


@given(st.lists(positive, min_size=1, max_size=30))
def test_a_median_lies_in_its_interval(samples: list[float]) -> None:
    found = interval(samples)
    assert found.low <= found.median * (1 + 1e-9)
    assert found.median <= found.high * (1 + 1e-9)
    assert found.samples == len(samples)


def test_two_samples_say_nothing_about_a_third() -> None:
    found = interval([3.0, 4.0])
    assert found.high == math.inf
    assert found.half_width == math.inf
    assert found.to_json() == {"median": 3.5, "low": None, "high": None, "samples": 2}


@pytest.mark.parametrize("samples", [[], [1.0, 0.0], [1.0, -2.0]])
def test_what_is_no_rate_is_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        interval(samples)


@pytest.mark.parametrize("count", [5, 8, 15])
def test_a_repetition_falls_into_the_interval_19_times_of_20(count: int) -> None:
    chance = random.Random(count)
    tries = 400

    def run() -> list[float]:
        return [100 * math.exp(chance.gauss(0, 0.08)) for _ in range(count)]

    inside = 0
    for _ in range(tries):
        found, again = interval(run()), interval(run())
        inside += found.low <= again.median <= found.high
    assert 0.925 < inside / tries < 0.99


def test_a_ratio_of_pairs_does_not_see_what_drifts_for_both() -> None:
    pairs = [(10 * drift, 12 * drift) for drift in (1.0, 0.7, 1.4, 0.9, 1.1)]
    found = ratio(pairs)
    assert found.median == pytest.approx(1.2)
    assert found.high - found.low < 1e-9


def test_a_ratio_needs_three_pairs() -> None:
    with pytest.raises(ValueError, match="three"):
        ratio([(1.0, 2.0), (1.0, 2.0)])


@given(st.lists(positive, min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_lies_among_the_samples(samples: list[float], share: float) -> None:
    found = quantile(samples, share)
    assert min(samples) * (1 - 1e-9) <= found <= max(samples) * (1 + 1e-9)
