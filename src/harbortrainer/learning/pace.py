"""When a group of trials may start, and which groups a step trains on, so that no sample is older than K steps."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from harbortrainer.learning.trajectory import TrialName


class Place(NamedTuple):
    """A group in the order of tasks. Written `s000003-p01`, as the names of its trials begin."""

    batch: int
    problem: int

    def __str__(self) -> str:
        return str(TrialName("step", self.batch, self.problem, 0)).rpartition("-g")[0]


@dataclass(slots=True)
class OpenGroup:
    """A group between its start and the end of the step that trains on it."""

    place: Place
    since: int  # the earliest step whose weights may have sampled one of its turns
    complete: bool = False
    taken: bool = False  # by the step under way


class Pace:
    """Starts groups and composes batches so that a group that starts at step s is trained on at one of s .. s + K.

    Let `c(t, d)` be the number of groups that the steps t to d take together. A schedule exists at step t as long as,
    for each d from t on, at most c(t, d) untrained groups are due (s + K) at d or before. Both decisions keep this:

    * A group starts only while fewer than c(t, t + K) groups are open. It is due last of all, at t + K.
    * Step t takes the groups that have been complete for the longest time in the order of their starts, but only if
      those that remain still meet the condition at step t + 1; otherwise it waits for older groups. It waits for
      groups that run already, and once all open groups are complete the oldest ones always meet it.

    So no group is ever too old, none is discarded for its age, and a step waits only for trials that run.
    """

    def __init__(self, most_stale: int, size: Callable[[int], int]) -> None:
        """`most_stale`: K. `size`: groups that a step takes, 0 after the last one."""
        self._k = most_stale
        self._size = size
        self.step = 0
        self.open: list[OpenGroup] = []

    def advance(self, step: int) -> None:
        """Begin `step`: the groups that the step before took are trained on."""
        self.open = [group for group in self.open if not group.taken]
        self.step = step

    def may_start(self) -> bool:
        return len(self.open) < self._room(self.step, self.step + self._k)

    def start(self, place: Place, since: int | None = None) -> OpenGroup:
        """Open a group. `since`: of one with finished trials, which an earlier process started; None = now."""
        group = OpenGroup(place, self.step if since is None else since)
        self.open.append(group)
        self.open.sort(key=lambda one: (one.since, one.place))
        return group

    def compose(self) -> list[Place] | None:
        """Take the groups of this step, in the order of tasks; None while it has to wait."""
        size = self._size(self.step)
        chosen = [group for group in self.open if group.complete][:size]
        rest = [group for group in self.open if group not in chosen]
        if len(chosen) < size or not self._in_time(rest):
            return None
        for group in chosen:
            if self.step - group.since > self._k:
                raise AssertionError(f"{group.place} started at step {group.since} and is trained on at {self.step}")
            group.taken = True
        return sorted(group.place for group in chosen)

    def _in_time(self, rest: Sequence[OpenGroup]) -> bool:
        """Whether the next steps can train on all of `rest` before they are too old."""
        due = sorted(Counter(group.since + self._k for group in rest).items())
        totals = accumulate(count for _, count in due)
        return all(total <= self._room(self.step + 1, day) for (day, _), total in zip(due, totals, strict=True))

    def _room(self, first: int, last: int) -> int:
        return sum(self._size(step) for step in range(first, last + 1))
