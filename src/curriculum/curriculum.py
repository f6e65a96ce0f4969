"""A run's curriculum: what each step takes, decided once, written down before its first trial, and read again later.

The choice of a step depends on the run's own files alone (seed, curriculum.jsonl), so a run that was killed goes on as
if it had not been.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.config import Config
from src.curriculum.choice import choose
from src.curriculum.known import KnownRewards
from src.curriculum.standing import ENOUGH, Measured, Standing
from src.learning.trajectory import TrajectoryGroup
from src.rollout.order import TaskOrder
from src.rollout.task import Task
from src.run.jsonl import append_line, cut_torn_line, read_lines

FILE = "curriculum.jsonl"  # in a run directory


class Curriculum:
    """Steps are chosen in order, each after the step before it was measured; one that was chosen stays as it is."""

    def __init__(self, band: tuple[float, float], tasks: Sequence[Task], run: Path, known: KnownRewards) -> None:
        """Raises UserError that names a damaged line of the run's curriculum.jsonl, DiskFault."""
        self._run, self._known = run, known
        self._tasks = {task.name: task for task in tasks}
        self._standings = {name: Standing(band) for name in self._tasks}
        self._own = dict.fromkeys(self._tasks, 0)  # trials that this run graded
        self._chosen: dict[int, dict[str, Any]] = {}
        self._measured = -1  # the last step that was
        self._position = 0
        cut_torn_line(self._file)
        records = read_lines(self._file, checked=True)
        for record in records:
            self._take(record)
        if not records:
            self._append({"event": "start", "rewards": known.of(tasks)})

    def batch(self, step: int, order: TaskOrder) -> list[Task]:
        """Tasks of one step, as many as `order` has for it. Raises DiskFault."""
        if step not in self._chosen:
            n = len(order.batch(step))
            choice = choose(lambda at: order.at(at).name, order.length, self._position, n, self._standings)
            names = {"tasks": choice.tasks, "outside": choice.outside, "passed_over": choice.passed_over}
            self._append({"event": "chosen", "step": step, **names, "position": choice.position})
        return [self._tasks[name] for name in self._chosen[step]["tasks"]]

    def measured(self, step: int, groups_P: Sequence[TrajectoryGroup]) -> None:
        """What became of a step's trials; a step that is made again was measured already. Raises DiskFault."""
        if step <= self._measured:
            return
        rewards: dict[str, Measured] = {}
        for group in groups_P:
            total, trials = rewards.get(group.task_name, (0.0, 0))
            rewards[group.task_name] = (total + sum(group.rewards_G), trials + len(group.rewards_G))
        early = {self._tasks[n]: one for n, one in rewards.items() if one[1] and self._own[n] < ENOUGH}
        self._append({"event": "measured", "step": step, "rewards": rewards})
        self._known.note(self._run.name, step, early)

    def metrics(self, step: int) -> dict[str, float]:
        """Training tasks by what is known of them now, and what the step took."""
        means = [(standing.mean, standing.outside) for standing in self._standings.values()]
        return {
            "curriculum/tasks_in_band": float(sum(mean is not None and not outside for mean, outside in means)),
            "curriculum/tasks_outside": float(sum(outside > 0 for _, outside in means)),
            "curriculum/tasks_unmeasured": float(sum(mean is None for mean, _ in means)),
            "curriculum/groups_outside": float(len(self._chosen[step]["outside"])),
        }

    @property
    def summary(self) -> str:
        """One line: how many tasks there are of each kind."""
        outside = sum(standing.outside > 0 for standing in self._standings.values())
        unknown = sum(standing.mean is None for standing in self._standings.values())
        inside = len(self._standings) - outside - unknown
        return f"curriculum: {inside} tasks in the band, {outside} outside, which rest, {unknown} not measured yet"

    @property
    def _file(self) -> Path:
        return self._run / FILE

    def _append(self, record: dict[str, Any]) -> None:
        append_line(self._file, record, checked=True)
        self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        match record["event"]:
            case "start":
                for name, (total, trials) in record["rewards"].items():
                    self._standings[name].measure((total, trials))
            case "chosen":
                self._chosen[record["step"]] = dict(record)
                self._position = record["position"]
                for name in record["tasks"]:
                    self._standings[name].passed_over = 0
                for name, times in record["passed_over"].items():
                    self._standings[name].passed_over += times
            case "measured":
                self._measured = record["step"]
                for name, (total, trials) in record["rewards"].items():
                    self._standings[name].measure((total, trials))
                    self._own[name] += trials


def open_curriculum(config: Config, run: Path, train: Sequence[Task]) -> Curriculum | None:
    """None where `curriculum_band` is off. Raises UserError, DiskFault."""
    if config.curriculum_band is None:
        return None
    return Curriculum(config.curriculum_band, train, run, KnownRewards(config))
