"""What the intervals and verdicts of src/evaluation are worth: simulated evaluations of policies that are known.

    python -m scripts.bench.coverage [EVALUATIONS] [SEED]     1,000 a setting; exit 1 unless all are within the bars

A setting outside the bars is measured again with ten times as many evaluations and another seed, and counts with those:
of a hundred settings at 96% some are outside by chance (the standard error of 1,000 is 0.6 points).

A simulated policy has a level (its true mean reward); every evaluation draws a fresh one, then tasks with pass rates
around that level, then trials. The level is what the interval has to cover. `percentile` is the usual bootstrap over
tasks, for comparison. `false` are verdicts "better" or "worse" about two policies with equal pass rates.
"""

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from src.evaluation.comparison import compare
from src.evaluation.interval import estimate_mean

TASKS = (20, 50, 89, 200)
TRIALS = (1, 2, 4, 8)
COVERAGE, FALSE = (0.93, 0.97), 0.05
RESAMPLES = 200

Generator = np.random.Generator
Rates = Callable[[Generator, float, int], np.ndarray]  # level, number of tasks -> pass rates with that mean


def beta(concentration: float) -> Rates:
    return lambda rng, level, n: rng.beta(concentration * level, concentration * (1 - level), n)


def bimodal(rng: Generator, level: float, n: int) -> np.ndarray:
    """Tasks that nearly always fail and tasks that nearly always pass."""
    return np.where(rng.random(n) < (level - 0.02) / 0.95, 0.97, 0.02)


def equal(rng: Generator, level: float, n: int) -> np.ndarray:
    return np.full(n, level)


# name -> levels of the policies, from and to; pass rates of tasks around a level
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
    policies: str
    tasks: int
    trials: int
    covered: float
    percentile: float
    paired: float
    false: float

    @property
    def good(self) -> bool:
        return COVERAGE[0] <= self.covered <= COVERAGE[1] and self.false <= FALSE


def simulate(policies: str, tasks: int, trials: int, evaluations: int, seed: int, bootstrap: bool = True) -> Row:
    """One setting; the same numbers for the same seed."""
    rng = np.random.default_rng([seed, list(POLICIES).index(policies), tasks, trials])
    low, high, rates = POLICIES[policies]
    hits = np.zeros(4)
    for _ in range(evaluations):
        level = rng.uniform(low, high)
        rates_P = rates(rng, level, tasks)
        a, b = (rng.random((tasks, trials)) < rates_P[:, None] for _ in range(2))
        values_P = a.mean(axis=1)
        estimate = estimate_mean(values_P.tolist(), _within(a))
        pair = compare(*({str(p): rewards_G for p, rewards_G in enumerate(x.astype(float).tolist())} for x in (a, b)))
        hits += (
            estimate.low <= level <= estimate.high,
            bootstrap and _percentile(rng, values_P, level),
            pair.low <= 0 <= pair.high,
            pair.distinguishable,
        )
    return Row(policies, tasks, trials, *(hits / evaluations))


def _within(trials_PG: np.ndarray) -> float:
    """As `estimate_reward` takes it from the rewards, at once for all tasks."""
    return float(trials_PG.var(axis=1, ddof=1).mean()) / trials_PG.shape[1] if trials_PG.shape[1] > 1 else 0.0


def _percentile(rng: Generator, values_P: np.ndarray, level: float) -> bool:
    means = values_P[rng.integers(0, len(values_P), (RESAMPLES, len(values_P)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return bool(low <= level <= high)


def main() -> int:
    given = [int(value) for value in sys.argv[1:3]]
    evaluations, seed = (*given, *(1000, 0)[len(given) :])
    print("| policies | tasks | trials | 95% interval covers | percentile bootstrap | difference covered | false |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for policies, tasks, trials in itertools.product(POLICIES, TASKS, TRIALS):
        row = simulate(policies, tasks, trials, evaluations, seed)
        _print(row, "")
        if not row.good:
            row = simulate(policies, tasks, trials, 10 * evaluations, seed + 1)
            _print(row, f", {10 * evaluations} evaluations")
        rows.append(row)
    covered, false = [row.covered for row in rows], [row.false for row in rows]
    print(f"\n{len(rows)} settings of {evaluations} evaluations each, seed {seed}:")
    print(f"covered {min(covered):.1%} to {max(covered):.1%}, mean {np.mean(covered):.1%}")
    print(f"false verdicts at most {max(false):.1%}, mean {np.mean(false):.1%}")
    return 0 if all(row.good for row in rows) else 1


def _print(row: Row, note: str) -> None:
    shares = (row.covered, row.percentile, row.paired, row.false)
    text = " | ".join(f"{100 * share:.1f}%" for share in shares)
    outside = "" if row.good else " (outside)"
    print(f"| {row.policies}{note}{outside} | {row.tasks} | {row.trials} | {text} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
