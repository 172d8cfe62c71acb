"""What a handful of measurements says: the median, and where a repetition's median would fall."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959963984540054  # the normal distribution's 97.5 % point

MEDIAN_LOSS = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, of many normal data (Kenney and Keeping, 1962)."""


def t_point(freedom: int) -> float:
    """The 97.5 % point of Student's distribution with so many degrees of freedom, within 1 % from 3 on.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5. Raises ValueError below 1.
    """
    if freedom < 1:
        raise ValueError(f"{freedom} degrees of freedom")
    if freedom == 1:
        return 12.706
    if freedom == 2:
        return 4.303
    z, n = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


@dataclass(frozen=True)
class Interval:
    """A median and the 95 % interval for the median of a repetition with as many samples.

    Wider than a confidence interval of the median, by the square root of two: a repetition errs, too.
    """

    median: float
    low: float
    high: float
    samples: int

    @property
    def half_width(self) -> float:
        """Half the interval over the median; infinite where there is no telling."""
        return (self.high - self.low) / 2 / self.median if self.median > 0 else math.inf

    def to_json(self) -> dict[str, float | int | None]:
        """JSON data; what is not known is None."""
        known = math.isfinite(self.low) and math.isfinite(self.high)
        return {
            "median": self.median,
            "low": self.low if known else None,
            "high": self.high if known else None,
            "samples": self.samples,
        }


def interval(samples: Sequence[float]) -> Interval:
    """Median and interval of positive samples (rates or times), reckoned on their logarithms.

    With fewer than three samples the interval is all positive numbers. Raises ValueError for none, or
    for samples that are not positive.
    """
    if not samples or min(samples) <= 0:
        raise ValueError("samples must be positive, and at least one")
    median = statistics.median(samples)
    count = len(samples)
    if count < 3:
        return Interval(median, 0.0, math.inf, count)
    spread = statistics.stdev(math.log(sample) for sample in samples)
    width = t_point(count - 1) * MEDIAN_LOSS * math.sqrt(2 / count) * spread
    return Interval(median, median * math.exp(-width), median * math.exp(width), count)


def ratio(pairs: Sequence[tuple[float, float]]) -> Interval:
    """B over A from pairs measured one after the other: geometric mean and its 95 % interval (paired t).

    Raises ValueError for fewer than three pairs or values that are not positive.
    """
    if len(pairs) < 3 or any(a <= 0 or b <= 0 for a, b in pairs):
        raise ValueError("three pairs of positive values at least")
    logs = [math.log(b / a) for a, b in pairs]
    middle = statistics.fmean(logs)
    width = t_point(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(middle), math.exp(middle - width), math.exp(middle + width), len(logs))


def quantile(samples: Sequence[float], share: float) -> float:
    """The value below which a share (0 to 1) of the samples lies. Raises ValueError for none."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
