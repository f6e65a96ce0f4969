"""Statistics of rewards, with the trials of a task as one cluster: pass@k, mean with interval, paired comparison."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

LEVEL = 0.95  # of intervals
VERDICT_LEVEL = 0.97  # keeps false verdicts below 5% also where few tasks give their variance
ROUNDING = 1e-9  # of rewards that are sums of fractions
NORMAL_FROM = 2000  # degrees of freedom; from here t and normal quantiles agree to 3 decimals
LARGEST = 1e4  # upper end of the search for a t quantile

Rewards = Mapping[str, Sequence[float]]  # task name -> rewards of its graded trials
_NONE: Mapping[str, int] = MappingProxyType({})


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None = of nothing, which is no 0."""
    return float(np.mean(values)) if values else None


def ratio(part: float, whole: float) -> float | None:
    """`part` / `whole`; None = of nothing."""
    return part / whole if whole else None


def known(numbers: Mapping[str, float | None]) -> dict[str, float]:
    """Return those that have a value."""
    return {name: value for name, value in numbers.items() if value is not None}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return unbiased: 1 - C(n - c, k) / C(n, k) from c successes in n trials (Chen et al. 2021, arXiv:2107.03374).

    Computed with integers, so exact to the last digit. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {c} successes in {n} trials")
    every = math.comb(n, k)
    return (every - math.comb(n - c, k)) / every


def task_pass_at_k(rewards_G: Sequence[float], k: int, pass_reward: float = 1.0) -> float | None:
    """Return pass@k of one task; a trial succeeds with a reward of at least `pass_reward`.

    None with fewer than k trials.
    """
    return None if len(rewards_G) < k else pass_at_k(len(rewards_G), successes(rewards_G, pass_reward), k)


def successes(rewards_G: Sequence[float], pass_reward: float = 1.0) -> int:
    """Return trials with a reward of at least `pass_reward`."""
    return sum(reward >= pass_reward - ROUNDING for reward in rewards_G)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over tasks of each task's value, its standard error and 95% interval.

    Without tasks all are NaN; `stderr` is NaN for a single task.
    """

    mean: float
    stderr: float
    low: float
    high: float
    n_tasks: int


def estimate_mean(values_P: Sequence[float], observations: int = 0) -> Estimate:
    """Get the mean of one value a task, such as its mean reward. `observations`: trials of all tasks; 0 = one a task.

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
        low, high = _wilson(min(1.0, max(0.0, mean)), variance, n, max(n, observations))
    elif n > 1:
        half = student_quantile(LEVEL, n - 1) * stderr
        low, high = mean - half, mean + half
    else:
        low, high = -math.inf, math.inf
    return Estimate(mean, stderr, low, high, n)


def estimate_reward(rewards_P: Sequence[Sequence[float]], ungraded_P: Sequence[int] = ()) -> Estimate:
    """Return the mean reward from the rewards of each task's trials. Each task with a graded trial counts once.

    `ungraded_P`: each task's trials without a grade. The mean leaves them out; the interval covers every reward in [0,
    1] that they could have earned (worst-case bounds, Manski 1990).
    """
    return _widened(_estimate_reward, rewards_P, ungraded_P)


def estimate_pass_at_k(
    rewards_P: Sequence[Sequence[float]], k: int, pass_reward: float = 1.0, ungraded_P: Sequence[int] = ()
) -> Estimate:
    """Return pass@k over the tasks with at least k trials; k trials are one observation.

    `ungraded_P`: as estimate_reward.
    """
    return _widened(lambda all_P: _estimate_pass_at_k(all_P, k, pass_reward), rewards_P, ungraded_P, pass_reward)


def _widened(
    estimate: Callable[[Sequence[Sequence[float]]], Estimate],
    rewards_P: Sequence[Sequence[float]],
    ungraded_P: Sequence[int],
    most: float = 1.0,
) -> Estimate:
    """The estimate from the graded trials; its interval also covers those with all others at 0, and at `most`."""
    graded = estimate(rewards_P)
    if not any(ungraded_P) or not graded.n_tasks:
        return graded
    worst, best = _bounds(rewards_P, most)
    low, high = (
        estimate([[*rewards_G, *[fill] * n] for rewards_G, n in zip(rewards_P, ungraded_P, strict=True)])
        for fill in (worst, best)
    )
    return replace(graded, low=min(graded.low, low.low), high=max(graded.high, high.high))


def _bounds(rewards_P: Iterable[Sequence[float]], most: float = 1.0) -> tuple[float, float]:
    """The lowest and highest reward that a trial may have: 0 and `most`, unless a graded one has less or more."""
    every = [reward for rewards_G in rewards_P for reward in rewards_G]
    return min([0.0, *every]), max([most, *every])


def _estimate_reward(rewards_P: Sequence[Sequence[float]]) -> Estimate:
    graded = [rewards_G for rewards_G in rewards_P if len(rewards_G)]
    means = [float(np.mean(rewards_G)) for rewards_G in graded]
    return estimate_mean(means, sum(len(rewards_G) for rewards_G in graded))


def _estimate_pass_at_k(rewards_P: Sequence[Sequence[float]], k: int, pass_reward: float) -> Estimate:
    counts = [(len(rewards_G), successes(rewards_G, pass_reward)) for rewards_G in rewards_P if len(rewards_G) >= k]
    return estimate_mean([pass_at_k(n, c, k) for n, c in counts], sum(n // k for n, _ in counts))


def _wilson(mean: float, variance: float, n: int, observations: int) -> tuple[float, float]:
    largest = mean * (1 - mean)
    inflation = 1.0  # equal tasks say nothing about their variance: each counts as one observation
    if n > 1 and largest > ROUNDING and variance > ROUNDING**2:
        quantiles = student_quantile(LEVEL, n - 1) / student_quantile(LEVEL, observations - 1)
        inflation = min(1.0, variance / largest) * quantiles**2
    share = normal_quantile(LEVEL) ** 2 * inflation / n
    centre = (mean + share / 2) / (1 + share)
    half = math.sqrt(share * largest + share * share / 4) / (1 + share)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two policies compared. `difference`: mean over tasks of (mean reward of B - mean reward of A); `low`, `high`:
    its 95% interval.

    `distinguishable`: its 97% interval lies on one side of 0.
    """

    difference: float
    stderr: float
    low: float
    high: float
    n_tasks: int
    distinguishable: bool
    open: bool = False  # the ungraded trials' rewards could change the verdict

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def verdict(self) -> str:
        """The comparison in words; numbers are points, hundredths of a reward."""
        if self.n_tasks < 2:
            return f"{self.n_tasks} tasks were graded for both: at least 2 are needed for a comparison"
        numbers = f"{100 * self.difference:+.1f} ± {100 * self.half_width:.1f}"
        if self.distinguishable:
            return f"{numbers}: {'better' if self.difference > 0 else 'worse'}"
        if self.open:
            return f"{numbers}: not distinguishable; the ungraded trials could change it (retry_ungraded=true)"
        seen = "" if self.difference else "; no difference was seen"
        return f"{numbers}: not distinguishable{seen}"


def compare(
    a: Rewards, b: Rewards, ungraded_a: Mapping[str, int] = _NONE, ungraded_b: Mapping[str, int] = _NONE
) -> Comparison:
    """Return the policy B against policy A, as `_compare`, whatever trials without a grade could have earned.

    `ungraded_a`, `ungraded_b`: their numbers by task. The difference leaves them out. The interval also covers those
    with all of A's at 1 and B's at 0, and the reverse; a verdict holds for both.
    """
    found = _compare(a, b)
    if found.n_tasks < 2 or not (any(ungraded_a.values()) or any(ungraded_b.values())):
        return found
    worst, best = _bounds([*a.values(), *b.values()])
    low = _compare(_filled(a, ungraded_a, best), _filled(b, ungraded_b, worst))
    high = _compare(_filled(a, ungraded_a, worst), _filled(b, ungraded_b, best))
    sure = low.distinguishable and high.distinguishable and low.difference * high.difference > 0
    wide = replace(found, low=min(found.low, low.low), high=max(found.high, high.high))
    return replace(wide, distinguishable=found.distinguishable and sure, open=found.distinguishable and not sure)


def _filled(rewards: Rewards, ungraded: Mapping[str, int], fill: float) -> Rewards:
    return {name: [*rewards_G, *[fill] * ungraded.get(name, 0)] for name, rewards_G in rewards.items()}


def _compare(a: Rewards, b: Rewards) -> Comparison:
    """Policy B against policy A, over the tasks that were graded for both. Paired: a task is one observation.

    mean(d) ± t s(d) / sqrt n, d = difference of a task's means, t with n - 1 degrees of freedom (Student 1908; tasks
    as clusters: Miller 2024, arXiv:2411.00640). Equal d leave the variance unknown: then two more tasks are assumed,
    one with a trial more won and one with a trial more lost (after Bonett & Price 2012).
    """
    names = [name for name in a if a[name] and b.get(name)]
    n = len(names)
    d_P = np.array([np.mean(b[name]) - np.mean(a[name]) for name in names])
    if n < 2:
        return Comparison(float(d_P.mean()) if n else 0.0, math.nan, -math.inf, math.inf, n, False)
    difference = float(d_P.mean())
    trials_P = np.array([min(len(a[name]), len(b[name])) for name in names])
    variance = _variance(d_P, float(trials_P.mean()))
    stderr = math.sqrt(variance / n)
    half = student_quantile(LEVEL, n - 1) * stderr
    distinguishable = abs(difference) > student_quantile(VERDICT_LEVEL, n - 1) * stderr
    return Comparison(difference, stderr, difference - half, difference + half, n, distinguishable)


def _variance(d_P: np.ndarray, trials: float) -> float:
    if np.ptp(d_P) > 1e-12:
        return float(d_P.var(ddof=1))
    return float(np.concatenate([d_P, [1 / trials, -1 / trials]]).var(ddof=1))


def normal_quantile(level: float) -> float:
    """Return z with P(|Z| <= z) = `level`."""
    return NormalDist().inv_cdf((1 + level) / 2)


@lru_cache(maxsize=4096)
def student_quantile(level: float, degrees: int) -> float:
    """Return t with P(|T| <= t) = `level`, by bisection, to 1e-9. Raises ValueError below one degree of freedom."""
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
