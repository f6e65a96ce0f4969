"""When a group of trials may start, and which groups a step trains on, so that no sample is older than K steps."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from harbortrainer.learning.trajectory import TrialName


class GroupSlot(NamedTuple):
    """A group in the order of tasks. Written `s000003-p01`, as the names of its trials begin."""

    batch: int
    problem: int

    def __str__(self) -> str:
        return TrialName("step", self.batch, self.problem, 0).group_name


@dataclass(slots=True)
class OpenGroup:
    """A group between its start and the end of the step that trains on it."""

    place: GroupSlot
    since: int  # the earliest step whose weights may have sampled one of its turns
    complete: bool = False
    constant: bool = False  # known once it is complete: its rewards do not differ
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

    Up to `spare` constant groups a step fill none of its places. As soon as one is complete it is set aside: it belongs
    to the next step that is composed, and is no longer open. That only lowers the number of groups that are due, so the
    condition holds, and another group may start. It started at most K steps before, or it would not have been open.
    """

    def __init__(self, most_stale: int, size: Callable[[int], int], spare: int = 0) -> None:
        """`most_stale`: K. `size`: groups that a step takes, 0 after the last one. `spare`: constant ones besides."""
        self._k = most_stale
        self._size = size
        self._spare = spare
        self._aside: list[OpenGroup] = []
        self._ahead = False
        self.step = 0
        self.open: list[OpenGroup] = []

    def advance(self, step: int) -> None:
        """Begin `step`: the groups that the step before took are trained on."""
        self.open = [group for group in self.open if not group.taken]
        self.step, self._ahead = step, False
        self._set_aside()

    def look_ahead(self) -> None:
        """Let groups that start until `advance` sample the weights of the next step, as if it had begun."""
        self._ahead = True

    def finish(self, group: OpenGroup, *, constant: bool = False) -> None:
        """Note that all trials of the group have ended."""
        group.complete, group.constant = True, constant
        self._set_aside()

    def _set_aside(self) -> None:
        constant = [group for group in self.open if group.constant and not group.taken]
        self._aside += constant[: self._spare - len(self._aside)]
        self.open = [group for group in self.open if group not in self._aside]

    def may_start(self) -> bool:
        if self._ahead:
            return sum(not group.taken for group in self.open) < self._room(self.step + 1, self.step + 1 + self._k)
        return len(self.open) < self._room(self.step, self.step + self._k)

    def start(self, place: GroupSlot, since: int | None = None) -> OpenGroup:
        """Open a group. `since`: the start of a group with finished trials, by an earlier process; None = now."""
        group = OpenGroup(place, self.step + self._ahead if since is None else since)
        self.open.append(group)
        self.open.sort(key=_age)
        return group

    def compose(self) -> list[GroupSlot] | None:
        """Take the groups of this step, in the order of tasks; None while it has to wait."""
        if (chosen := self._chosen()) is None:
            return None
        for group in (*chosen, *self._aside):
            if self.step - group.since > self._k:
                raise AssertionError(f"{group.place} started at step {group.since} and is trained on at {self.step}")
            group.taken = True
        places = sorted(group.place for group in (*chosen, *self._aside))
        self._aside = []
        self._set_aside()
        return places

    def _chosen(self) -> list[OpenGroup] | None:
        size = self._size(self.step)
        if (chosen := self._oldest(size)) is not None:
            return chosen
        if not self._spare or self.may_start() or not all(group.complete for group in self.open):
            return None
        # Only after a kill: groups that were set aside have run lost trials again, and are not constant any more. At
        # most `spare` groups are due besides those that the condition allows, so the oldest ones fit into the step.
        self.open, self._aside = sorted([*self.open, *self._aside], key=_age), []
        return next(filter(None, map(self._oldest, range(size, size + self._spare + 1))), None)

    def _oldest(self, n: int) -> list[OpenGroup] | None:
        """The `n` oldest complete groups; None where there are fewer, or where the others would become too old."""
        chosen = [group for group in self.open if group.complete][:n]
        rest = [group for group in self.open if group not in chosen]
        return chosen if len(chosen) == n and self._in_time(rest) else None

    def _in_time(self, rest: Sequence[OpenGroup]) -> bool:
        """Whether the next steps can train on all of `rest` before they are too old."""
        due = sorted(Counter(group.since + self._k for group in rest).items())
        totals = accumulate(count for _, count in due)
        return all(total <= self._room(self.step + 1, day) for (day, _), total in zip(due, totals, strict=True))

    def _room(self, first: int, last: int) -> int:
        return sum(self._size(step) for step in range(first, last + 1))


def _age(group: OpenGroup) -> tuple[int, GroupSlot]:
    return group.since, group.place
