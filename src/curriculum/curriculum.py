"""A run's curriculum: the tasks of each step, chosen once and written down before the step's first trial.

The choice depends only on the run's own files (seed, curriculum.jsonl), so a killed run resumes with the same tasks.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.config import Config
from src.curriculum.choice import Measured, TaskHistory, choose
from src.learning.trajectory import TrajectoryGroup
from src.rollout.order import TaskOrder
from src.rollout.task import Task
from src.run.jsonl import append_line, cut_torn_line, read_lines

FILE = "curriculum.jsonl"  # in a run directory


class Curriculum:
    """Chooses steps in order, each after the step before it was measured; a step that was chosen keeps its tasks."""

    def __init__(self, band: tuple[float, float], tasks: Sequence[Task], run: Path) -> None:
        """Raises UserError that names a damaged line of the run's curriculum.jsonl, DiskFault."""
        self._file = run / FILE
        self._tasks = {task.name: task for task in tasks}
        self._histories = {name: TaskHistory(band) for name in self._tasks}
        self._chosen: dict[int, dict[str, Any]] = {}
        self._measured = -1  # the last measured step
        self._position = 0
        cut_torn_line(self._file)
        for record in read_lines(self._file, checked=True):
            self._take(record)

    def batch(self, step: int, order: TaskOrder) -> list[Task]:
        """Tasks of one step, as many as `order` has for it. Raises DiskFault."""
        if step not in self._chosen:
            n = len(order.batch(step))
            choice = choose(lambda at: order.at(at).name, order.length, self._position, n, self._histories)
            names = {"tasks": choice.tasks, "outside": choice.outside, "passed_over": choice.passed_over}
            self._append({"event": "chosen", "step": step, **names, "position": choice.position})
        return [self._tasks[name] for name in self._chosen[step]["tasks"]]

    def measured(self, step: int, groups_P: Sequence[TrajectoryGroup]) -> None:
        """Record the rewards of a step; a repeated step was recorded already. Raises DiskFault."""
        if step <= self._measured:
            return
        rewards: dict[str, Measured] = {}
        for group in groups_P:
            total, trials = rewards.get(group.task_name, (0.0, 0))
            rewards[group.task_name] = (total + sum(group.rewards_G), trials + len(group.rewards_G))
        self._append({"event": "measured", "step": step, "rewards": rewards})

    def metrics(self, step: int) -> dict[str, float]:
        """Training tasks in and outside the band, and the tasks outside it in this step's batch."""
        inside, outside, unmeasured = self._counts()
        return {
            "curriculum/tasks_in_band": float(inside),
            "curriculum/tasks_outside": float(outside),
            "curriculum/tasks_unmeasured": float(unmeasured),
            "curriculum/groups_outside": float(len(self._chosen[step]["outside"])),
        }

    @property
    def summary(self) -> str:
        """One line: the number of tasks of each kind."""
        inside, outside, unmeasured = self._counts()
        return f"curriculum: {inside} tasks in the band, {outside} outside, which rest, {unmeasured} not measured yet"

    def _counts(self) -> tuple[int, int, int]:
        outside = sum(history.outside > 0 for history in self._histories.values())
        unmeasured = sum(history.mean is None for history in self._histories.values())
        return len(self._histories) - outside - unmeasured, outside, unmeasured

    def _append(self, record: dict[str, Any]) -> None:
        append_line(self._file, record, checked=True)
        self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        match record["event"]:
            case "chosen":
                self._chosen[record["step"]] = dict(record)
                self._position = record["position"]
                for name in record["tasks"]:
                    self._histories[name].passed_over = 0
                for name, times in record["passed_over"].items():
                    self._histories[name].passed_over += times
            case "start" | "measured":  # earlier versions began with rewards of other runs
                self._measured = record.get("step", self._measured)
                for name, (total, trials) in record["rewards"].items():
                    self._histories[name].measure((total, trials))


def open_curriculum(config: Config, run: Path, train: Sequence[Task]) -> Curriculum | None:
    """None without `curriculum_band`. Raises UserError, DiskFault."""
    return None if config.curriculum_band is None else Curriculum(config.curriculum_band, train, run)
