"""Chooses the tasks of each step by their measured rewards, once, and records the choice before the step's first trial.

The choice depends only on the run's own files (seed, curriculum.jsonl), so a killed run resumes with the same tasks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harbortrainer.config import Config
from harbortrainer.durable.jsonl import append_line, cut_torn_line, read_lines
from harbortrainer.learning.trajectory import TrajectoryGroup
from harbortrainer.tasks.order import TaskOrder
from harbortrainer.tasks.task import Task

FILE = "curriculum.jsonl"  # in a run directory
ENOUGH = 8  # graded trials for a mean
LONGEST_REST = 15  # times in a row that a task is passed over at most

Measured = tuple[float, int]  # sum of the rewards of graded trials, their number


@dataclass
class TaskHistory:
    """Measured rewards of one task. `groups`: oldest first; `outside`: measurements in a row outside the band."""

    band: tuple[float, float]
    groups: list[Measured] = field(default_factory=list)
    outside: int = 0
    passed_over: int = 0  # since it was last taken

    @property
    def mean(self) -> float | None:
        """Mean reward of the newest groups that have ENOUGH graded trials together; None = there are fewer."""
        total, trials = 0.0, 0
        for rewards, graded in reversed(self.groups):
            total, trials = total + rewards, trials + graded
            if trials >= ENOUGH:
                return total / trials
        return None

    @property
    def rest(self) -> int:
        """How often in a row it is passed over: 3, 7, then 15 times, by the number of measurements outside the band."""
        return min(2 ** (self.outside + 1) - 1, LONGEST_REST) if self.outside else 0

    def measure(self, measured: Measured) -> None:
        """Add one group; ungraded trials are in neither number."""
        if not measured[1]:
            return
        self.groups.append(measured)
        mean, (low, high) = self.mean, self.band
        self.outside = self.outside + 1 if mean is not None and not low <= mean <= high else 0


class Curriculum:
    """Chooses steps in order, each after the step before it was measured; a chosen step keeps its tasks."""

    def __init__(self, band: tuple[float, float], tasks: Sequence[Task], run: Path) -> None:
        """Raises UserError naming a damaged line of the run's curriculum.jsonl, DiskFault."""
        self._file = run / FILE
        self._tasks = {task.name: task for task in tasks}
        self._histories = {name: TaskHistory(band) for name in self._tasks}
        self._chosen: dict[int, dict[str, Any]] = {}
        self._measured = -1  # the last measured step
        self._position = 0
        cut_torn_line(self._file)
        for record in read_lines(self._file, checked=True):
            self._take(record)

    def batch(self, step: int, order: TaskOrder[Task]) -> list[Task]:
        """The tasks of one batch, as many as `order` has for it. Raises DiskFault."""
        if step not in self._chosen:
            size = len(order.batch(step) or order.beyond(step))
            self._append({"event": "chosen", "step": step, **self._choose(size, order)})
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

    def _choose(self, n: int, order: TaskOrder[Task]) -> dict[str, Any]:
        """The next `n` tasks of the order, without those that rest or are in the batch already.

        When an epoch gives fewer than `n` tasks, those that rested longest fill the batch, then tasks are taken twice.
        Returns `tasks`: names, in order; `outside`: those of them with a mean outside the band; `passed_over`: how
        often each other task was; `position`: where in the order the next step begins.
        """
        histories, position = self._histories, self._position
        taken: list[str] = []
        passed: Counter[str] = Counter()
        end = position + order.length
        while len(taken) < n and position < end:
            name = order.at(position).name
            position += 1
            if name in taken:
                continue
            if histories[name].passed_over + passed[name] < histories[name].rest:
                passed[name] += 1
            else:
                taken.append(name)
        rested = sorted((name for name in passed if name not in taken), key=lambda name: -histories[name].passed_over)
        taken += rested[: n - len(taken)]
        while len(taken) < n:
            taken.append(order.at(position).name)
            position += 1
        outside = [name for name in dict.fromkeys(taken) if histories[name].outside]
        passed_over = {name: count for name, count in passed.items() if name not in taken}
        return {"tasks": taken, "outside": outside, "passed_over": passed_over, "position": position}

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
            case "start" | "measured":  # "start": rewards of other runs, in journals of earlier versions
                self._measured = record.get("step", self._measured)
                for name, (total, trials) in record["rewards"].items():
                    self._histories[name].measure((total, trials))


def open_curriculum(config: Config, run: Path, train: Sequence[Task]) -> Curriculum | None:
    """The run's curriculum; None without `curriculum_band`. Raises UserError, DiskFault."""
    return None if config.curriculum_band is None else Curriculum(config.curriculum_band, train, run)
