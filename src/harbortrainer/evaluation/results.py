"""What an evaluation found: numbers of one policy, as a whole, and by set, domain and task. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from harbortrainer.cli.output import wide_console
from harbortrainer.errors import UserError
from harbortrainer.evaluation.arguments import EvalArgs
from harbortrainer.evaluation.policies import Subject
from harbortrainer.learning.trajectory import TrajectoryGroup
from harbortrainer.stats import Comparison, Estimate, estimate_pass_at_k, estimate_reward, task_pass_at_k
from harbortrainer.tasks.sources import Source, find_sources, load_sources
from harbortrainer.tasks.task import Task


@dataclass(frozen=True, slots=True)
class EvalTask:
    """`set`: name of the source that it came from; `domain`: metadata.category of its task.toml, else the set."""

    task: Task
    set: str
    domain: str


def load_sets(args: EvalArgs) -> tuple[list[Source], list[EvalTask]]:
    """Where tasks come from, as in training; one whose name is in several sets is called SET/NAME. Raises UserError."""
    sources = find_sources(args.tasks_dir)
    tasks = load_sources(sources, args.tasks_include, args.tasks_exclude)
    return sources, [EvalTask(task, task.source, task.domain) for task in tasks]


def require_same(saved: Sequence[dict[str, Any]], tasks: Sequence[EvalTask], out: str) -> None:
    """A continued evaluation has the tasks that it was started with. Raises UserError."""
    before = {task["name"]: task["digest"] for task in saved}
    now = {one.task.name: one.task.digest for one in tasks}
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed or list(before) != list(now):
        raise UserError(
            f"tasks_dir: {', '.join(changed[:3]) or 'the order of tasks'} changed since out={out} was started; put the "
            "tasks back or choose another out"
        )


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


Value = dict[str, Any]


def report_json(
    args: EvalArgs,
    model_name: str,
    subjects: Sequence[Subject],
    found: Sequence[Sequence[TaskResult]],
    comparison: Comparison | None,
) -> Value:
    """Everything that was found, as JSON values; the same trials give the same text."""
    named = zip(subjects, found, strict=True)
    return {
        "model_name": model_name,
        "trials": args.trials,
        "temperature": args.temperature,
        "seed": args.seed,
        "pass_reward": args.pass_reward,
        "planned_trials": sum(map(len, found)) * args.trials,
        "policies": [
            {"name": subject.name, "path": subject.path} | results_json(one, args.k, args.pass_reward)
            for subject, one in named
        ],
        "comparison": _comparison(subjects, comparison) if comparison else None,
    }


def show(value: Value, console: Console | None = None) -> None:
    """Tables of each policy and the verdict."""
    console = console or wide_console()
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


def _comparison(subjects: Sequence[Subject], found: Comparison) -> Value:
    numbers = {name: finite(number) if isinstance(number, float) else number for name, number in asdict(found).items()}
    numbers["tasks"] = numbers.pop("n_tasks")
    return {"policy": subjects[0].name, "against": subjects[1].name, "verdict": found.verdict} | numbers


def _overview(policy: Value) -> Table:
    table = Table(title=policy["name"], title_justify="left")
    for column in ("", "tasks", "trials", "ungraded", "reward", "95% interval", *_pass_columns(policy)):
        table.add_column(column, justify="left" if not column else "right", no_wrap=bool(column))
    parts = {"all": policy}
    for kind in ("sets", "domains"):
        if len(policy[kind]) > 1:
            parts |= {f"{kind[:-1]} {name}": part for name, part in policy[kind].items()}
    for name, part in parts.items():
        table.add_row(name, str(part["tasks"]), str(part["trials"]), _share(part), *_numbers(part))
    return table


def _tasks(policy: Value) -> Table:
    table = Table()
    for column in ("task", "domain", "graded", "ungraded", "reward", *_pass_columns(policy)):
        table.add_column(column, justify="left" if column in ("task", "domain") else "right")
    for task in policy["per_task"]:
        counts = (str(len(task["rewards"])), str(task["ungraded"] or ""))
        passes = (_number(value) for value in task["pass_at"].values())
        table.add_row(task["name"], task["domain"], *counts, _number(task["mean"]), *passes)
    return table


def _side_by_side(a: Value, b: Value) -> Table:
    table = Table()
    for column in ("task", "domain", a["name"], b["name"], "difference"):
        table.add_column(column, justify="left" if column in ("task", "domain") else "right")
    for one, other in zip(a["per_task"], b["per_task"], strict=True):
        both = one["mean"] is not None and other["mean"] is not None
        difference = f"{one['mean'] - other['mean']:+.3f}" if both else "-"
        table.add_row(one["name"], one["domain"], _number(one["mean"]), _number(other["mean"]), difference)
    return table


def _faults(policy: Value) -> str:
    ends = ", ".join(f"{count} {name}" for name, count in policy["outcomes"].items())
    line = f"{policy['name']}: {ends or 'no trial'}"
    if policy["ungraded"]:
        line += f"; {_share(policy)} of {policy['trials']} trials have no grade, for no fault of the policy: left out"
    if policy["tasks_ungraded"]:
        line += f"; {policy['tasks_ungraded']} tasks have no graded trial: the numbers are of the others"
    return line


def _pass_columns(policy: Value) -> list[str]:
    return [f"pass@{k}" for k in policy["pass_at"]]


def _numbers(part: Value) -> list[str]:
    reward = part["reward"]
    interval = f"{_number(reward['low'])} to {_number(reward['high'])}"
    return [_number(reward["mean"]), interval, *(_number(estimate["mean"]) for estimate in part["pass_at"].values())]


def _share(part: Value) -> str:
    return f"{part['ungraded']} ({part['ungraded_share']:.1%})" if part["ungraded"] else "0"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
