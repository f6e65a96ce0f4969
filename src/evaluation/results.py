"""What an evaluation found: numbers of one policy, as a whole, and by set, domain and task. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from src.evaluation.sets import EvalTask
from src.learning.trajectory import TrajectoryGroup
from src.stats.interval import Estimate, estimate_pass_at_k, estimate_reward
from src.stats.pass_at_k import task_pass_at_k


@dataclass(frozen=True, slots=True)
class TaskResult:
    """`rewards_G`: of the graded trials only; `ungraded`: trials that faults kept from a grade, which say nothing."""

    name: str
    set: str
    domain: str
    rewards_G: tuple[float, ...]
    ungraded: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers of some tasks. `pass_at`: k -> estimate over the tasks with at least k graded trials."""

    tasks: int
    tasks_ungraded: int  # without any graded trial; in no mean
    trials: int  # that ended, graded or not
    ungraded: int
    reward: Estimate
    pass_at: Mapping[int, Estimate]


def task_results(tasks_P: Sequence[EvalTask], groups_P: Sequence[TrajectoryGroup]) -> list[TaskResult]:
    """One a task, in order."""
    return [
        TaskResult(
            one.task.name,
            one.set,
            one.domain,
            group.rewards_G,
            len(group.lost),
            Counter(t.outcome.value for t in (*group.trajectories_G, *group.lost)),
        )
        for one, group in zip(tasks_P, groups_P, strict=True)
    ]


def summarise(results_P: Sequence[TaskResult], k: Sequence[int], pass_reward: float) -> Summary:
    """A task counts once, with the mean of its graded trials."""
    graded = [result for result in results_P if result.rewards_G]
    return Summary(
        tasks=len(results_P),
        tasks_ungraded=len(results_P) - len(graded),
        trials=sum(len(result.rewards_G) + result.ungraded for result in results_P),
        ungraded=sum(result.ungraded for result in results_P),
        reward=estimate_reward([result.rewards_G for result in graded]),
        pass_at={one: estimate_pass_at_k([r.rewards_G for r in graded], one, pass_reward) for one in k},
    )


def by(
    results_P: Sequence[TaskResult], key: Callable[[TaskResult], str], k: Sequence[int], pass_reward: float
) -> dict[str, Summary]:
    """Summaries of the tasks with the same key, by name."""
    names = sorted({key(result) for result in results_P})
    return {name: summarise([r for r in results_P if key(r) == name], k, pass_reward) for name in names}


def results_json(results_P: Sequence[TaskResult], k: Sequence[int], pass_reward: float) -> dict[str, Any]:
    """All numbers of one policy; no times: the same trials give the same text."""
    total: Counter[str] = Counter()
    for result in results_P:
        total.update(result.outcomes)
    return {
        **_summary(summarise(results_P, k, pass_reward)),
        "outcomes": dict(sorted(total.items())),
        "sets": {name: _summary(s) for name, s in by(results_P, lambda r: r.set, k, pass_reward).items()},
        "domains": {name: _summary(s) for name, s in by(results_P, lambda r: r.domain, k, pass_reward).items()},
        "per_task": [_task(result, k, pass_reward) for result in results_P],
    }


def finite(value: float) -> float | None:
    """JSON knows no NaN and no infinity."""
    return float(value) if np.isfinite(value) else None


def estimate_json(estimate: Estimate) -> dict[str, Any]:
    names = ("mean", "stderr", "low", "high")
    return {name: finite(getattr(estimate, name)) for name in names} | {"tasks": estimate.n_tasks}


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "tasks": summary.tasks,
        "tasks_ungraded": summary.tasks_ungraded,
        "trials": summary.trials,
        "ungraded": summary.ungraded,
        "ungraded_share": summary.ungraded / summary.trials if summary.trials else 0.0,
        "reward": estimate_json(summary.reward),
        "pass_at": {str(k): estimate_json(estimate) for k, estimate in summary.pass_at.items()},
    }


def _task(result: TaskResult, k: Sequence[int], pass_reward: float) -> dict[str, Any]:
    return {
        "name": result.name,
        "set": result.set,
        "domain": result.domain,
        "rewards": list(result.rewards_G),
        "mean": float(np.mean(result.rewards_G)) if result.rewards_G else None,
        "ungraded": result.ungraded,
        "outcomes": dict(sorted(result.outcomes.items())),
        "pass_at": {str(one): task_pass_at_k(result.rewards_G, one, pass_reward) for one in k},
    }
