"""Two policies on the same tasks: their difference, and whether chance explains it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from src.stats.interval import LEVEL, student_quantile

VERDICT_LEVEL = 0.97  # so that false verdicts stay below 5% also where the tasks are few and their variance a guess
MANY = 1000  # the most additional trials or tasks that are suggested

Rewards = Mapping[str, Sequence[float]]  # task name -> rewards of its graded trials


@dataclass(frozen=True, slots=True)
class Comparison:
    """`difference`: mean over tasks of (mean reward of B - mean reward of A); `low`, `high`: its 95% interval.

    `distinguishable`: its 97% interval lies on one side of 0. `more_trials`, `more_tasks`: how many more of them would
    make this difference distinguishable if it stays as it is, None = no number would, or it cannot be known.
    """

    difference: float
    stderr: float
    low: float
    high: float
    n_tasks: int
    distinguishable: bool
    more_trials: int | None = None
    more_tasks: int | None = None
    single_trials: bool = False  # a task had one trial only: `more_trials` is then a lower bound

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def verdict(self) -> str:
        """In words; in points, hundredths of a reward."""
        if self.n_tasks < 2:
            return f"{self.n_tasks} tasks were graded for both: at least 2 are needed for a comparison"
        numbers = f"{100 * self.difference:+.1f} ± {100 * self.half_width:.1f}"
        if self.distinguishable:
            return f"{numbers}: {'better' if self.difference > 0 else 'worse'}"
        return f"{numbers}: not distinguishable; {self._needed()}"

    def _needed(self) -> str:
        if not self.difference:
            return "no difference was seen"
        tasks = f"about {self.more_tasks} more tasks" if self.more_tasks else f"more than {MANY} more tasks"
        if self.more_trials is None:
            return f"no number of trials would be enough on these tasks, {tasks} like them would be needed"
        least = "at least" if self.single_trials else "about"
        return f"{least} {self.more_trials} more trials a task would be needed, or {tasks}"


def compare(a: Rewards, b: Rewards) -> Comparison:
    """Policy B against policy A, over the tasks that were graded for both. Paired: a task is one observation.

    mean(d) ± t s(d) / sqrt n, d = difference of a task's means, t with n - 1 degrees of freedom (Student 1908; tasks
    as clusters: Miller 2024, arXiv:2411.00640). Where all d are equal their variance is not 0 but unknown: then as if
    two more tasks had been seen, one with a trial more won and one with a trial more lost (after Bonett & Price 2012).
    """
    names = [name for name in a if a[name] and b.get(name)]
    n = len(names)
    d_P = np.array([_mean(b[name]) - _mean(a[name]) for name in names])
    if n < 2:
        return Comparison(float(d_P.mean()) if n else 0.0, math.nan, -math.inf, math.inf, n, False)
    difference = float(d_P.mean())
    trials_P = np.array([min(len(a[name]), len(b[name])) for name in names])
    within = float(np.mean([_within(a[name]) + _within(b[name]) for name in names])) if trials_P.min() > 1 else None
    variance = _variance(d_P, float(trials_P.mean()))
    stderr = math.sqrt(variance / n)
    half = student_quantile(LEVEL, n - 1) * stderr
    distinguishable = abs(difference) > student_quantile(VERDICT_LEVEL, n - 1) * stderr
    low, high = difference - half, difference + half
    if distinguishable or not difference:
        return Comparison(difference, stderr, low, high, n, distinguishable)
    more_trials = _more_trials(difference, variance, within, n, float(trials_P.mean()))
    more_tasks = _more_tasks(difference, variance, n)
    return Comparison(difference, stderr, low, high, n, False, more_trials, more_tasks, within is None)


def _variance(d_P: np.ndarray, trials: float) -> float:
    if np.ptp(d_P) > 1e-12:
        return float(d_P.var(ddof=1))
    return float(np.concatenate([d_P, [1 / trials, -1 / trials]]).var(ddof=1))


def _within(rewards_G: Sequence[float]) -> float:
    """Variance of a task's mean that its trials' own randomness makes; it shrinks with their number."""
    mean, n = _mean(rewards_G), len(rewards_G)
    return sum((reward - mean) ** 2 for reward in rewards_G) / (n - 1) / n


def _mean(rewards_G: Sequence[float]) -> float:
    return sum(rewards_G) / len(rewards_G)


def _more_trials(difference: float, variance: float, within: float | None, n: int, trials: float) -> int | None:
    """More trials a task until |difference| is distinguishable, when it stays as it is.

    The variance of d is that between tasks, which trials do not shrink, and that within them, which shrinks with 1 /
    trials. With a single trial a task the two cannot be told apart: then all of it is taken for the latter (0/1 rewards
    of one trial are mostly that), and the number is a lower bound.
    """
    allowed = n * (difference / student_quantile(VERDICT_LEVEL, n - 1)) ** 2
    shrinking = variance if within is None else min(within, variance)
    left = allowed - (variance - shrinking)
    if left <= 0:
        return None
    more = math.ceil(trials * shrinking / left - trials - 1e-9)
    return max(1, more) if more <= MANY else None


def _more_tasks(difference: float, variance: float, n: int) -> int | None:
    """More tasks until |difference| is distinguishable, when it and the variance between tasks stay as they are."""
    needed = n
    while (difference / student_quantile(VERDICT_LEVEL, needed - 1)) ** 2 * needed < variance:
        needed += max(1, needed // 50)
        if needed - n > MANY:
            return None
    return max(1, needed - n)
