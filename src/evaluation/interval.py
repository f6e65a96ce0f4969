"""The mean over tasks, and an interval for it that treats a task's trials as one observation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from src.evaluation.student import normal_quantile, student_quantile

LEVEL = 0.95
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Estimate:
    """`mean` over tasks of each task's mean, its standard error, and the 95% interval for tasks like these.

    Without tasks all are NaN; `stderr` is NaN for a single one.
    """

    mean: float
    stderr: float
    low: float
    high: float
    n_tasks: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def estimate_mean(values_P: Sequence[float], level: float = LEVEL) -> Estimate:
    """The mean of one value a task, each the mean of its trials.

    In [0, 1] Wilson's interval (1927) for the number of independent 0/1 observations that would vary as much as these
    tasks do: n / d, with the design effect d = variance / (mean (1 - mean)), at most 1 (Kish 1965; for Wilson's
    interval with it: Dean & Pagano 2015). The quantile lies between the normal one, right where d is 1 and there is no
    variance to estimate, and Student's with n - 1 degrees of freedom, by 1 - d; that is our own, and measured with the
    rest by scripts/bench/coverage.py. Other values: mean ± t s / sqrt n.
    """
    values = np.asarray(values_P, float)
    n = len(values)
    if not n:
        return Estimate(math.nan, math.nan, math.nan, math.nan, 0)
    mean = float(values.mean())
    variance = float(values.var(ddof=1)) if n > 1 else math.nan
    stderr = math.sqrt(variance / n)
    if values.min() > -ROUNDING and values.max() < 1 + ROUNDING:
        low, high = _wilson(min(1.0, max(0.0, mean)), variance, n, level)
    elif n > 1:
        half = student_quantile(level, n - 1) * stderr
        low, high = mean - half, mean + half
    else:
        low, high = -math.inf, math.inf
    return Estimate(mean, stderr, low, high, n)


def _wilson(mean: float, variance: float, n: int, level: float) -> tuple[float, float]:
    largest = mean * (1 - mean)
    design = min(1.0, variance / largest) if n > 1 and largest > 1e-12 else 1.0
    if design < 1e-9:  # all tasks alike, to the last digit
        return mean, mean
    q = normal_quantile(level)
    q += (student_quantile(level, n - 1) - q) * (1 - design) if n > 1 else 0.0
    share = q * q * design / n
    centre = (mean + share / 2) / (1 + share)
    half = math.sqrt(share * largest + share * share / 4) / (1 + share)
    return max(0.0, centre - half), min(1.0, centre + half)
