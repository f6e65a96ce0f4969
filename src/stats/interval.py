"""The mean over tasks with a confidence interval that treats the trials of a task as one cluster."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from src.stats.pass_at_k import pass_at_k, successes

LEVEL = 0.95
ROUNDING = 1e-9
NORMAL_FROM = 2000  # degrees of freedom; from here t and normal quantiles agree to 3 decimals
LARGEST = 1e4  # upper end of the search for a t quantile


@dataclass(frozen=True, slots=True)
class Estimate:
    """`mean` over tasks of each task's value, its standard error, and the 95% interval for tasks like these.

    Without tasks all are NaN; `stderr` is NaN for a single task.
    """

    mean: float
    stderr: float
    low: float
    high: float
    n_tasks: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def estimate_mean(values_P: Sequence[float], observations: int = 0, level: float = LEVEL) -> Estimate:
    """The mean of one value a task, such as the mean reward of its trials. `observations`: trials of all tasks; 0 = one
    a task.

    In [0, 1]: Wilson's interval (1927) with the effective sample size n / d in place of n. The design effect d =
    variance / (mean (1 - mean)) is at most 1 (Kish 1965; with Wilson's interval: Dean & Pagano 2015). The effective
    size is multiplied by (t_observations / t_tasks)^2, quantiles of Student's t with one degree of freedom less than
    observations and tasks, as the variance is estimated from few tasks (Korn & Graubard 1998). Other values: mean ± t s
    / sqrt n.
    """
    values = np.asarray(values_P, float)
    n = len(values)
    if not n:
        return Estimate(math.nan, math.nan, math.nan, math.nan, 0)
    mean = float(values.mean())
    variance = float(values.var(ddof=1)) if n > 1 else math.nan
    stderr = math.sqrt(variance / n)
    if values.min() > -ROUNDING and values.max() < 1 + ROUNDING:
        low, high = _wilson(min(1.0, max(0.0, mean)), variance, n, max(n, observations), level)
    elif n > 1:
        half = student_quantile(level, n - 1) * stderr
        low, high = mean - half, mean + half
    else:
        low, high = -math.inf, math.inf
    return Estimate(mean, stderr, low, high, n)


def estimate_reward(rewards_P: Sequence[Sequence[float]], level: float = LEVEL) -> Estimate:
    """The mean reward of tasks with these rewards of their trials. Each task with a graded trial counts once."""
    graded = [rewards_G for rewards_G in rewards_P if len(rewards_G)]
    means = [float(np.mean(rewards_G)) for rewards_G in graded]
    return estimate_mean(means, sum(len(rewards_G) for rewards_G in graded), level)


def estimate_pass_at_k(
    rewards_P: Sequence[Sequence[float]], k: int, pass_reward: float = 1.0, level: float = LEVEL
) -> Estimate:
    """pass@k over the tasks with at least k trials; k trials are one observation."""
    counts = [(len(rewards_G), successes(rewards_G, pass_reward)) for rewards_G in rewards_P if len(rewards_G) >= k]
    return estimate_mean([pass_at_k(n, c, k) for n, c in counts], sum(n // k for n, _ in counts), level)


def _wilson(mean: float, variance: float, n: int, observations: int, level: float) -> tuple[float, float]:
    largest = mean * (1 - mean)
    inflation = 1.0  # where all tasks are alike, their variance is unknown: each counts as one observation
    if n > 1 and largest > ROUNDING and variance > ROUNDING**2:
        quantiles = student_quantile(level, n - 1) / student_quantile(level, observations - 1)
        inflation = min(1.0, variance / largest) * quantiles**2
    share = normal_quantile(level) ** 2 * inflation / n
    centre = (mean + share / 2) / (1 + share)
    half = math.sqrt(share * largest + share * share / 4) / (1 + share)
    return max(0.0, centre - half), min(1.0, centre + half)


def normal_quantile(level: float) -> float:
    """z with P(|Z| <= z) = `level`."""
    return NormalDist().inv_cdf((1 + level) / 2)


@lru_cache(maxsize=4096)
def student_quantile(level: float, degrees: int) -> float:
    """t with P(|T| <= t) = `level`, by bisection, to 1e-9. Raises ValueError below one degree of freedom."""
    if degrees < 1:
        raise ValueError(f"student_quantile: {degrees} degrees of freedom")
    if degrees >= NORMAL_FROM:
        return normal_quantile(level)
    low, high = 0.0, LARGEST
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, degrees) < level else (low, middle)
    return (low + high) / 2


def _student_within(t: float, degrees: int) -> float:
    """P(|T| <= t): the finite series of Abramowitz & Stegun (1964), 26.7.3 for odd and 26.7.4 for even degrees."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    if degrees == 1:
        return 2 * angle / math.pi
    odd = degrees % 2
    term = total = math.cos(angle) if odd else 1.0
    for i in range(3 if odd else 2, degrees - 1, 2):
        term *= square * (i - 1) / i
        total += term
    part = math.sin(angle) * total
    return 2 / math.pi * (angle + part) if odd else part
