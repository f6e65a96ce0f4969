"""evaluation.json, and the same as tables."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from src.cli.output import wide_console
from src.evaluation import results
from src.evaluation.arguments import EvalArgs
from src.evaluation.policies import Subject
from src.stats.comparison import Comparison

Value = dict[str, Any]


def report_json(
    args: EvalArgs,
    model_name: str,
    subjects: Sequence[Subject],
    found: Sequence[Sequence[results.TaskResult]],
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
            {"name": subject.name, "path": subject.path} | results.results_json(one, args.k, args.pass_reward)
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
    numbers = {
        name: results.finite(number) if isinstance(number, float) else number for name, number in asdict(found).items()
    }
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
