"""Results of an evaluation: each policy's numbers as a whole, by set, domain and task, and their tables. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from harbortrainer.cli.output import wide_console
from harbortrainer.evaluation.arguments import EvalArgs
from harbortrainer.evaluation.policies import Subject
from harbortrainer.learning.trajectory import TrajectoryGroup
from harbortrainer.stats import Estimate, compare, estimate_pass_at_k, estimate_reward, mean, task_pass_at_k
from harbortrainer.tasks.task import Task

Value = dict[str, Any]


TaskResult = tuple[Task, TrajectoryGroup]  # a task's trials by one policy; `lost`: those that faults left ungraded


def report_json(
    args: EvalArgs, model_name: str, subjects: Sequence[Subject], found: Sequence[Sequence[TaskResult]]
) -> Value:
    """Return all numbers as JSON values, without times: the same trials give the same text."""
    policies = zip(subjects, found, strict=True)
    return {
        "model_name": model_name,
        "trials": args.trials,
        "temperature": args.temperature,
        "seed": args.seed,
        "pass_reward": args.pass_reward,
        "planned_trials": sum(map(len, found)) * args.trials,
        "policies": [{"name": one.name, "path": one.path} | _policy(results_P, args) for one, results_P in policies],
        "comparison": _comparison(subjects, found) if len(found) == 2 else None,
    }


def _policy(results_P: Sequence[TaskResult], args: EvalArgs) -> Value:
    return {
        **_summary(results_P, args),
        "outcomes": _outcomes(group for _, group in results_P),
        **_clean(results_P, args),
        "sets": _parts(results_P, lambda task: task.source, args),
        "domains": _parts(results_P, lambda task: task.domain, args),
        "per_task": [_task(result, args) for result in results_P],
    }


def _clean(results_P: Sequence[TaskResult], args: EvalArgs) -> Value:
    """A summary of test tasks of a data set that none of its training tasks is related to; {} without such a set."""
    if not any(task.clean is not None for task, _ in results_P):
        return {}
    return {"clean": _summary([result for result in results_P if result[0].clean], args)}


def _parts(results_P: Sequence[TaskResult], key: Callable[[Task], str], args: EvalArgs) -> Value:
    """Summaries of the tasks with the same key, by name."""
    names = sorted({key(task) for task, _ in results_P})
    return {name: _summary([r for r in results_P if key(r[0]) == name], args) for name in names}


def _summary(results_P: Sequence[TaskResult], args: EvalArgs) -> Value:
    """A task counts once, with the mean of its graded trials; pass@k is over tasks with at least k graded trials.

    The intervals cover every reward that the ungraded trials could have earned.
    """
    rewards_P, ungraded_P = [group.rewards_G for _, group in results_P], [len(group.lost) for _, group in results_P]
    ungraded = sum(ungraded_P)
    passes = {str(k): estimate_pass_at_k(rewards_P, k, args.pass_reward, ungraded_P) for k in args.k}
    trials = sum(map(len, rewards_P)) + ungraded
    floors = [task.floor for task, _ in results_P if task.floor is not None]
    return {
        **({"floor": float(np.mean(floors))} if floors else {}),  # the mean reward of doing nothing
        "tasks": len(results_P),
        "tasks_ungraded": sum(not rewards_G for rewards_G in rewards_P),
        "trials": trials,
        "ungraded": ungraded,
        "ungraded_share": ungraded / trials if trials else 0.0,
        "reward": _estimate(estimate_reward(rewards_P, ungraded_P)),
        "pass_at": {k: _estimate(estimate) for k, estimate in passes.items()},
    }


def _task(result: TaskResult, args: EvalArgs) -> Value:
    (task, group), rewards_G = result, result[1].rewards_G
    return {
        "name": task.name,
        "set": task.source,
        "domain": task.domain,
        "rewards": list(rewards_G),
        "mean": mean(rewards_G),
        "ungraded": len(group.lost),
        "outcomes": _outcomes([group]),
        "pass_at": {str(k): task_pass_at_k(rewards_G, k, args.pass_reward) for k in args.k},
    }


def _outcomes(groups: Iterable[TrajectoryGroup]) -> dict[str, int]:
    trials = (trial for group in groups for trial in (*group.trajectories_G, *group.lost))
    return dict(sorted(Counter(trial.outcome.value for trial in trials).items()))


def _comparison(subjects: Sequence[Subject], found: Sequence[Sequence[TaskResult]]) -> Value:
    one, other = ({task.name: group.rewards_G for task, group in results_P} for results_P in found)
    lost, lost_other = ({task.name: len(group.lost) for task, group in results_P} for results_P in found)
    compared = compare(other, one, lost_other, lost)
    numbers = {name: _finite(value) if isinstance(value, float) else value for name, value in asdict(compared).items()}
    numbers["tasks"] = numbers.pop("n_tasks")
    return {"policy": subjects[0].name, "against": subjects[1].name, "verdict": compared.verdict} | numbers


def _estimate(estimate: Estimate) -> Value:
    names = ("mean", "stderr", "low", "high")
    return {name: _finite(getattr(estimate, name)) for name in names} | {"tasks": estimate.n_tasks}


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(value) if np.isfinite(value) else None


def show(value: Value) -> None:
    """Print the tables of each policy and the verdict."""
    console = wide_console()
    for policy in value["policies"]:
        console.print()
        console.print(_overview(policy))
    if len(value["policies"]) == 1:
        console.print(_tasks(value["policies"][0]))
    else:
        console.print(_side_by_side(*value["policies"]))
        comparison = value["comparison"]
        console.print(f"\n{comparison['policy']} against {comparison['against']}, in points of reward: ", end="")
        console.print(f"{comparison['verdict']} ({comparison['tasks']} tasks, paired)", soft_wrap=True)
    for policy in value["policies"]:
        console.print(_faults(policy), soft_wrap=True)


def _overview(policy: Value) -> Table:
    table = Table(title=policy["name"], title_justify="left")
    floor = ["doing nothing"] if "floor" in policy else []
    for column in ("", "tasks", "trials", "ungraded", "reward", *floor, "95% interval", *_pass_columns(policy)):
        table.add_column(column, justify="right" if column else "left", no_wrap=bool(column))
    parts = {"all": policy} | ({"clean test tasks": policy["clean"]} if "clean" in policy else {})
    for kind in ("sets", "domains"):
        if len(policy[kind]) > 1:
            parts |= {f"{kind[:-1]} {name}": part for name, part in policy[kind].items()}
    for name, part in parts.items():
        reward = part["reward"]
        interval = f"{_number(reward['low'])} to {_number(reward['high'])}"
        passes = (_number(estimate["mean"]) for estimate in part["pass_at"].values())
        counts = (str(part["tasks"]), str(part["trials"]), _share(part))
        nothing = [_number(part.get("floor"))] if floor else []
        table.add_row(name, *counts, _number(reward["mean"]), *nothing, interval, *passes)
    return table


def _tasks(policy: Value) -> Table:
    table = _task_table("graded", "ungraded", "reward", *_pass_columns(policy))
    for task in policy["per_task"]:
        counts = (str(len(task["rewards"])), str(task["ungraded"] or ""))
        passes = (_number(value) for value in task["pass_at"].values())
        table.add_row(task["name"], task["domain"], *counts, _number(task["mean"]), *passes)
    return table


def _side_by_side(a: Value, b: Value) -> Table:
    table = _task_table(a["name"], b["name"], "difference")
    for one, other in zip(a["per_task"], b["per_task"], strict=True):
        both = one["mean"] is not None and other["mean"] is not None
        difference = f"{one['mean'] - other['mean']:+.3f}" if both else "-"
        table.add_row(one["name"], one["domain"], _number(one["mean"]), _number(other["mean"]), difference)
    return table


def _task_table(*numbers: str) -> Table:
    table = Table("task", "domain")
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _faults(policy: Value) -> str:
    ends = ", ".join(f"{count} {name}" for name, count in policy["outcomes"].items())
    line = f"{policy['name']}: {ends or 'no trial'}"
    if policy["ungraded"]:
        line += f"; {_share(policy)} of {policy['trials']} trials have no grade, through faults: in no mean, and the "
        line += "intervals cover every reward that they could have earned"
    if policy["tasks_ungraded"]:
        line += f"; {policy['tasks_ungraded']} tasks have no graded trial: the numbers are of the others"
    return line


def _pass_columns(policy: Value) -> list[str]:
    return [f"pass@{k}" for k in policy["pass_at"]]


def _share(part: Value) -> str:
    return f"{part['ungraded']} ({part['ungraded_share']:.1%})" if part["ungraded"] else "0"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
