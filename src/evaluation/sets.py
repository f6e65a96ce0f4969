"""The tasks of an evaluation: in sets, one a source, and in domains, as their task.toml says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from src.errors import UserError
from src.evaluation.arguments import EvalArgs
from src.rollout.task import Task
from src.tasks.sources import Source, find_sources, load_sources


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
