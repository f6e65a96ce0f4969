"""Held-out reward of runs, from their ledgers: first and last evaluation, and their paired difference.

python -m scripts.gpu.held_out RUN ...

With several runs, the last evaluation of each is also compared with that of the first run, task by task.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.report.trials import EVALUATION, read_trials
from harbortrainer.stats import compare, estimate_reward

Rewards = Mapping[str, Sequence[float]]  # task -> rewards of its graded trials


def evaluations(run: Path) -> dict[int, dict[str, list[float]]]:
    """Step -> the rewards of that evaluation, in order of steps."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in read_trials(read_lines(run / "ledger.jsonl")):
        if trial.kind == EVALUATION and trial.step is not None and trial.reward is not None:
            found[trial.step][trial.task].append(trial.reward)
    return dict(sorted(found.items()))


def mean(rewards: Rewards) -> str:
    estimate = estimate_reward(list(rewards.values()))
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def difference(a: Rewards, b: Rewards) -> str:
    found = compare(a, b)
    return f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}] over {found.n_tasks} tasks"


def lines(runs: Sequence[Path]) -> list[str]:
    """One line a run, one more for each run after the first. Means and differences have 95% intervals."""
    said: list[str] = []
    last: list[Rewards] = []
    for run in runs:
        steps = evaluations(run)
        if not steps:
            sys.exit(f"{run}: its ledger has no evaluation")
        (first, before), *_, (end, after) = [*steps.items(), *steps.items()]
        text = f"{run.name}: held out {mean(before)} at step {first}"
        if end != first:
            text += f" -> {mean(after)} at step {end}, difference {difference(before, after)}"
        said.append(text)
        last.append(after)
    for run, rewards in zip(runs[1:], last[1:], strict=True):
        said.append(f"{run.name} against {runs[0].name}: difference {difference(last[0], rewards)}")
    return said


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m scripts.gpu.held_out RUN ...")
    print("\n".join(lines([Path(argument) for argument in sys.argv[1:]])))
