"""Which tasks each batch trains on: a pure function of seed and step, so that a resumed run takes the same ones."""

import math
from collections.abc import Sequence

import numpy as np

from src.rollout.task import Task


class TaskOrder:
    """Endless seeded permutations of the tasks, cut into batches; a batch may span two epochs.

    total_steps = ceil(n_epochs * tasks / batch_size), at most max_steps when that is above 0.
    """

    def __init__(self, tasks: Sequence[Task], *, batch_size: int, n_epochs: int, max_steps: int, seed: int) -> None:
        self._tasks = list(tasks)
        self._batch_size = batch_size
        self._seed = seed
        steps = math.ceil(n_epochs * len(tasks) / batch_size)
        self.total_steps = min(steps, max_steps) if max_steps else steps
        self._last = n_epochs * len(tasks)

    def batch(self, step: int) -> list[Task]:
        """Tasks of one step; the run's last batch may be smaller."""
        first = step * self._batch_size
        return [self._at(position) for position in range(first, min(first + self._batch_size, self._last))]

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch ends within this step."""
        n = len(self._tasks)
        return (step * self._batch_size) // n < min((step + 1) * self._batch_size, self._last) // n

    def _at(self, position: int) -> Task:
        epoch, index = divmod(position, len(self._tasks))
        permutation = np.random.default_rng([self._seed, epoch]).permutation(len(self._tasks))
        return self._tasks[int(permutation[index])]
