"""How often the intervals of harbortrainer.stats cover, and how often its verdicts are false, in simulated evaluations.

    python -m bench.coverage [EVALUATIONS] [SEED]     1,000 a setting; exit 1 unless all are within the bars

A setting outside the bars is measured again with ten times as many evaluations and another seed, and counts with those:
of 96 settings at 96% some are outside by chance (the standard error of 1,000 evaluations is 0.6 points).
"""

import itertools
import sys

import numpy as np

from tests.support.simulated_evaluations import POLICIES, Row, simulate

TASKS = (20, 50, 89, 200)
TRIALS = (1, 2, 4, 8)


def main() -> int:
    given = [int(value) for value in sys.argv[1:3]]
    evaluations, seed = (*given, *(1000, 0)[len(given) :])
    print("| policies | tasks | trials | 95% interval covers | difference covered | false |")
    print("| --- | --- | --- | --- | --- | --- |")
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
    text = " | ".join(f"{100 * share:.1f}%" for share in (row.covered, row.paired, row.false))
    outside = "" if row.good else " (outside)"
    print(f"| {row.policies}{note}{outside} | {row.tasks} | {row.trials} | {text} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
