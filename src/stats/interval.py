"""The mean over tasks, and an interval for it that treats a task's trials as one observation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from src.evaluation.pass_at_k import pass_at_k, successes
from src.evaluation.student import normal_quantile, student_quantile

LEVEL = 0.95
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Estimate:
    """`mean` over tasks of each task's value, its standard error, and the 95% interval for tasks like these.

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


def estimate_mean(values_P: Sequence[float], within: float = 0.0, level: float = LEVEL) -> Estimate:
    """The mean of one value a task, such as the mean of its trials.

    `within`: the mean variance of these values that the tasks' trials alone make. The tasks' own variance is at least
    that; where by chance it looks far smaller, half of `within` is taken (all of it would widen every interval).

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
    variance = max(float(values.var(ddof=1)), within / 2) if n > 1 else math.nan
    stderr = math.sqrt(variance / n)
    if values.min() > -ROUNDING and values.max() < 1 + ROUNDING:
        low, high = _wilson(min(1.0, max(0.0, mean)), variance, n, level)
    elif n > 1:
        half = student_quantile(level, n - 1) * stderr
        low, high = mean - half, mean + half
    else:
        low, high = -math.inf, math.inf
    return Estimate(mean, stderr, low, high, n)


def estimate_reward(rewards_P: Sequence[Sequence[float]], level: float = LEVEL) -> Estimate:
    """The mean reward of tasks with these rewards of their trials; each task counts once, those without any not."""
    graded = [np.asarray(rewards_G, float) for rewards_G in rewards_P if len(rewards_G)]
    within = [rewards_G.var(ddof=1) / len(rewards_G) if len(rewards_G) > 1 else 0.0 for rewards_G in graded]
    return estimate_mean([float(rewards_G.mean()) for rewards_G in graded], _mean(within), level)


def estimate_pass_at_k(
    rewards_P: Sequence[Sequence[float]], k: int, pass_reward: float = 1.0, level: float = LEVEL
) -> Estimate:
    """pass@k over the tasks with at least k trials; its variance within tasks by the jackknife over their trials."""
    counts = [(len(rewards_G), successes(rewards_G, pass_reward)) for rewards_G in rewards_P if len(rewards_G) >= k]
    return estimate_mean(
        [pass_at_k(n, c, k) for n, c in counts], _mean([_jackknife(n, c, k) for n, c in counts]), level
    )


def _jackknife(n: int, c: int, k: int) -> float:
    """Variance of pass@k from its values without each trial in turn (Efron & Stein 1981); 0 where k is all of them."""
    if k == n or c in (0, n):
        return 0.0
    without = [pass_at_k(n - 1, c - 1, k)] * c + [pass_at_k(n - 1, c, k)] * (n - c)
    return (n - 1) * float(np.var(without))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _wilson(mean: float, variance: float, n: int, level: float) -> tuple[float, float]:
    largest = mean * (1 - mean)
    known = n > 1 and largest > ROUNDING and variance > ROUNDING**2
    design = min(1.0, variance / largest) if known else 1.0  # tasks that are all alike say nothing of their variance
    q = normal_quantile(level)
    q += (student_quantile(level, n - 1) - q) * (1 - design) if known else 0.0
    share = q * q * design / n
    centre = (mean + share / 2) / (1 + share)
    half = math.sqrt(share * largest + share * share / 4) / (1 + share)
    return max(0.0, centre - half), min(1.0, centre + half)
