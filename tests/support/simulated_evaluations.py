"""Evaluations of simulated policies with a known mean reward: how often intervals cover it, how often verdicts err."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harbortrainer.stats import compare, estimate_mean

COVERAGE, FALSE = (0.93, 0.97), 0.05  # bars

Generator = np.random.Generator
Rates = Callable[[Generator, float, int], np.ndarray]  # level, number of tasks -> pass rates with that mean


def beta(concentration: float) -> Rates:
    return lambda rng, level, n: rng.beta(concentration * level, concentration * (1 - level), n)


def bimodal(rng: Generator, level: float, n: int) -> np.ndarray:
    """Tasks that nearly always fail and tasks that nearly always pass."""
    return np.where(rng.random(n) < (level - 0.02) / 0.95, 0.97, 0.02)


def equal(rng: Generator, level: float, n: int) -> np.ndarray:
    return np.full(n, level)


# name -> range of the policies' levels; pass rates of tasks around a level
POLICIES: dict[str, tuple[float, float, Rates]] = {
    "beta, spread": (0.3, 0.7, beta(2)),
    "beta, U-shaped": (0.15, 0.5, beta(1)),
    "bimodal": (0.2, 0.8, bimodal),
    "all easy": (0.85, 0.97, beta(20)),
    "all hard": (0.05, 0.2, beta(10)),
    "all alike": (0.1, 0.9, equal),
}


@dataclass
class Row:
    """Shares of the evaluations. `paired`: the interval of a comparison of equal policies covers 0; `false`: verdicts
    "better" or "worse" about them."""

    policies: str
    tasks: int
    trials: int
    covered: float
    paired: float
    false: float

    @property
    def good(self) -> bool:
        return COVERAGE[0] <= self.covered <= COVERAGE[1] and self.false <= FALSE


def simulate(policies: str, tasks: int, trials: int, evaluations: int, seed: int) -> Row:
    """One setting. Each evaluation draws a level (the true mean reward), pass rates of tasks around it, and trials."""
    rng = np.random.default_rng([seed, list(POLICIES).index(policies), tasks, trials])
    low, high, rates = POLICIES[policies]
    hits = np.zeros(3)
    for _ in range(evaluations):
        level = rng.uniform(low, high)
        rates_P = rates(rng, level, tasks)
        a, b = (rng.random((tasks, trials)) < rates_P[:, None] for _ in range(2))
        estimate = estimate_mean(a.mean(axis=1).tolist(), a.size)
        pair = compare(*({str(p): rewards_G for p, rewards_G in enumerate(x.astype(float).tolist())} for x in (a, b)))
        hits += (estimate.low <= level <= estimate.high, pair.low <= 0 <= pair.high, pair.distinguishable)
    return Row(policies, tasks, trials, *(hits / evaluations))
