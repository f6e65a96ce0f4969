"""Settings by step: a resumed run may change them; repeated steps use the settings of their first run."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harbortrainer.config import Config
from harbortrainer.tasks.order import TaskOrder
from harbortrainer.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Span:
    """The steps from `first_step` on, up to the first step of a later span."""

    first_step: int
    config: Config
    order: TaskOrder[Task]


class SettingsByStep:
    """The settings and tasks of every step of a run."""

    def __init__(self, train: Sequence[Task], configs: Sequence[tuple[int, Config]]) -> None:
        """`configs`: (first step, configuration) in order of time; the last one is in force."""
        self.train = list(train)
        self._by_name = {task.name: task for task in train}
        self._spans = [Span(step, config, task_order(config, train)) for step, config in configs]

    @property
    def configs(self) -> list[Config]:
        """All that hold for some step, in order of time."""
        return [span.config for span in self._spans]

    @property
    def total_steps(self) -> int:
        return self._spans[-1].order.total_steps

    def at(self, step: int) -> Span:
        """Return the most recent settings that apply to the 0-based `step`."""
        return next(span for span in reversed(self._spans) if span.first_step <= step)

    def size(self, step: int) -> int:
        """Return groups of the 0-based step; 0 after the last one."""
        return len(self.at(step).order.batch(step)) if step < self.total_steps else 0

    def groups(self, batch: int) -> int:
        """Return groups of a batch.

        With `oversample_max` batches follow the run's last step, for steps take more than one.
        """
        return self.size(batch) or (self.configs[-1].batch_size if self.configs[-1].oversample_max else 0)

    def batch(self, step: int) -> list[Task]:
        """Return the tasks of a batch; that of the 0-based `step`, unless steps take others."""
        order = self.at(step).order
        return order.batch(step) if step < self.total_steps else order.beyond(step)

    def ahead(self, step: int, steps: int) -> list[Task]:
        """Return the tasks of so many batches from `step` on."""
        batches = (self.at(number).order.batch(number) for number in range(step, step + steps))
        return [task for batch in batches for task in batch]

    def instead(self, step: int, taken: Collection[str]) -> Task | None:
        """Get the next task after a batch whose name is not in `taken`, for one of its places; None = there is none."""
        order = self.at(step).order
        first = (step + 1) * self.configs[-1].batch_size
        following = (order.at(position) for position in range(first, first + 2 * order.length))
        return next((task for task in following if task.name not in taken), None)

    def named(self, name: str) -> Task | None:
        """Return the training task of this name."""
        return self._by_name.get(name)


def task_order(config: Config, train: Sequence[Task]) -> TaskOrder[Task]:
    return TaskOrder(
        train,
        batch_size=config.batch_size,
        n_epochs=config.n_epochs,
        max_steps=config.max_steps,
        seed=config.seed,
        weights=config.task_weights,
    )


def evaluation_due(eval_every: int, order: TaskOrder[Task], step: int) -> bool:
    """Return whether the 0-based step is followed by an evaluation; the last one of a run always is."""
    return (step + 1) % eval_every == 0 if eval_every else order.ends_epoch(step)
