"""The order of tasks or conversations: a pure function of seed and position, so that a resumed run takes the same."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np

from harbortrainer.errors import UserError


class Sourced(Protocol):
    @property
    def source(self) -> str: ...


class TaskOrder[T: Sourced]:
    """Endless seeded permutations of the tasks (or conversations), cut into batches; a batch may span two epochs.

    The weight of a task's source is how often an epoch takes the task: 2 = twice; 0.5 = half of the source's tasks,
    another half in each epoch. total_steps = ceil(n_epochs * length of an epoch / batch_size), at most max_steps when
    that is above 0; n_epochs=None: as many as max_steps takes, else 1. `full`: the last batch has batch_size too,
    else it may be smaller. Raises UserError for an epoch without tasks.
    """

    def __init__(
        self,
        tasks: Sequence[T],
        *,
        batch_size: int,
        n_epochs: int | None,
        max_steps: int,
        seed: int,
        weights: Mapping[str, float] = MappingProxyType({}),
        full: bool = False,
    ) -> None:
        self._always: list[T] = []
        self._sometimes: list[tuple[list[T], int]] = []  # tasks of a source, how many of them an epoch takes
        for source in dict.fromkeys(task.source for task in tasks):
            members = [task for task in tasks if task.source == source]
            whole, part = divmod(weights.get(source, 1.0), 1)
            self._always += members * int(whole)
            self._sometimes.append((members, round(part * len(members))))
        self.length = len(self._always) + sum(count for _, count in self._sometimes)
        if tasks and not self.length:
            raise UserError("task_weights: an epoch would have no task; raise them")
        self._epoch: tuple[int, list[T]] = (-1, [])  # the last one used
        self._batch_size = batch_size
        self._seed = seed
        self._last = max_steps * batch_size if n_epochs is None and max_steps else (n_epochs or 1) * self.length
        steps = math.ceil(self._last / batch_size)
        self._last = steps * batch_size if full else self._last
        self.total_steps = min(steps, max_steps) if max_steps else steps

    def batch(self, step: int) -> list[T]:
        """Return tasks of one step; the run's last batch may be smaller."""
        first = step * self._batch_size
        return [self.at(position) for position in range(first, min(first + self._batch_size, self._last))]

    def beyond(self, step: int) -> list[T]:
        """Return tasks of a batch after the run's last one, in the same endless order."""
        return [self.at(position) for position in range(step * self._batch_size, (step + 1) * self._batch_size)]

    def ends_epoch(self, step: int) -> bool:
        """Return whether an epoch ends within this step."""
        n = self.length
        return (step * self._batch_size) // n < min((step + 1) * self._batch_size, self._last) // n

    def at(self, position: int) -> T:
        """Return the task at a position of the endless order."""
        epoch, index = divmod(position, self.length)
        if epoch != self._epoch[0]:
            self._epoch = (epoch, self._permuted(epoch))
        return self._epoch[1][index]

    def _permuted(self, epoch: int) -> list[T]:
        random = np.random.default_rng([self._seed, epoch])
        permutation = random.permutation(self.length)
        tasks = list(self._always)
        for members, count in self._sometimes:
            tasks += [members[int(i)] for i in random.permutation(len(members))[:count]]
        return [tasks[int(index)] for index in permutation]
