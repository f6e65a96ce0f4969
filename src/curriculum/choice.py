"""The tasks of one step, from the order of all tasks and the rewards that each task had. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

ENOUGH = 8  # graded trials that a mean is taken from
LONGEST_REST = 15  # times in a row that a task is passed over at most

Measured = tuple[float, int]  # sum of the rewards of graded trials, their number


@dataclass
class TaskHistory:
    """Of one task. `groups`: oldest first; `outside`: measurements in a row outside the band."""

    band: tuple[float, float]
    groups: list[Measured] = field(default_factory=list)
    outside: int = 0
    passed_over: int = 0  # since it was last taken

    @property
    def mean(self) -> float | None:
        """Mean reward of the newest groups that have ENOUGH trials between them; None while there are fewer."""
        total, trials = 0.0, 0
        for rewards, graded in reversed(self.groups):
            total, trials = total + rewards, trials + graded
            if trials >= ENOUGH:
                return total / trials
        return None

    @property
    def rest(self) -> int:
        """How often in a row it is passed over: 3, 7, then 15 times, more with each measurement outside the band."""
        return min(2 ** (self.outside + 1) - 1, LONGEST_REST) if self.outside else 0

    def measure(self, measured: Measured) -> None:
        """Add one group; ungraded trials are in neither number."""
        if not measured[1]:
            return
        self.groups.append(measured)
        mean, (low, high) = self.mean, self.band
        self.outside = self.outside + 1 if mean is not None and not low <= mean <= high else 0


@dataclass(frozen=True, slots=True)
class Choice:
    """`tasks`: names, in order; `outside`: those of them with a mean outside the band; `passed_over`: how often each
    other task was; `position`: where in the order the next step begins."""

    tasks: list[str]
    outside: list[str]
    passed_over: dict[str, int]
    position: int


def choose(
    at: Callable[[int], str], length: int, position: int, n: int, histories: Mapping[str, TaskHistory]
) -> Choice:
    """`n` tasks from `position` on. `at`: name at a position of the endless order.

    Passes over tasks that rest or are in the batch already. When `length` positions, an epoch, give fewer than `n`
    tasks, those that rested longest fill the batch, then tasks are taken twice.
    """
    taken: list[str] = []
    passed: Counter[str] = Counter()
    end = position + length
    while len(taken) < n and position < end:
        name = at(position)
        position += 1
        if name in taken:
            continue
        if histories[name].passed_over + passed[name] < histories[name].rest:
            passed[name] += 1
        else:
            taken.append(name)
    left = sorted((name for name in passed if name not in taken), key=lambda name: -histories[name].passed_over)
    taken += left[: n - len(taken)]
    while len(taken) < n:
        taken.append(at(position))
        position += 1
    outside = [name for name in dict.fromkeys(taken) if histories[name].outside]
    return Choice(taken, outside, {name: count for name, count in passed.items() if name not in taken}, position)
