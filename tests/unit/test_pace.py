"""The rules that start groups and compose batches: no group too old, none discarded, no step that waits for ever."""

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest

from harbortrainer.learning.pace import GroupSlot, OpenGroup, Pace
from tests.support.tiers import first


def pace(k: int, size: int = 2, steps: int = 10) -> Pace:
    return Pace(k, lambda step: size if step < steps else 0)


def started(rules: Pace, n: int, batch: int = 0) -> list[OpenGroup]:
    return [rules.start(GroupSlot(batch, problem)) for problem in range(n)]


def test_a_step_takes_the_oldest_complete_groups_and_waits_only_for_those_that_would_be_too_old() -> None:
    rules = pace(1)
    slow, *fast = started(rules, 4)
    assert not rules.may_start(), "two steps of two groups"
    for group in fast:
        group.complete = True
    assert rules.compose() == [(0, 1), (0, 2)], "the slow one can be trained on at the next step"
    rules.advance(1)
    newer = started(rules, 2, batch=1)
    newer[0].complete = newer[1].complete = True
    assert rules.compose() is None, "not without the slow one, which would be 2 steps old at the next"
    slow.complete = True
    assert rules.compose() == [(0, 0), (0, 3)]


def test_groups_that_start_ahead_count_from_the_next_step() -> None:
    rules = Pace(1, lambda step: (2, 3, 1, 5, 5)[step])
    for group in started(rules, 5):
        rules.finish(group)
    assert rules.compose() == [(0, 0), (0, 1)] and not rules.may_start()
    rules.look_ahead()
    (ahead,) = [rules.start(GroupSlot(1, problem)) for problem in range(9) if rules.may_start()]
    assert ahead.since == 1, "with the three that are left it fills steps 1 and 2"
    rules.advance(1)
    assert len(rules.open) == 4 and not rules.may_start()
    assert rules.compose() == [(0, 2), (0, 3), (0, 4)]
    rules.look_ahead()
    assert rules.may_start(), "step 3 takes five groups"
    rules.advance(2)
    assert rules.compose() is None and rules.may_start()
    rules.finish(ahead)
    assert rules.compose() == [(1, 0)]
    rules.look_ahead()
    assert rules.start(GroupSlot(2, 0)).since == 3
    rules.advance(3)
    rules.look_ahead()
    assert rules.start(GroupSlot(3, 0)).since == 4


def test_groups_of_an_earlier_process_keep_their_age() -> None:
    rules = pace(1)
    rules.advance(3)
    old, new = rules.start(GroupSlot(1, 1), since=2), rules.start(GroupSlot(2, 0))
    others = started(rules, 2, batch=3)
    for group in (new, *others):
        group.complete = True
    assert rules.compose() is None, "the old one is due now"
    old.complete = True
    assert rules.compose() == [(1, 1), (2, 0)]


def test_a_group_set_aside_fills_no_place_while_another_may_start() -> None:
    rules = Pace(0, lambda step: 2, spare=1)
    for group, constant in zip(started(rules, 2), (True, False), strict=True):
        rules.finish(group, constant=constant)
    assert rules.may_start() and rules.compose() is None
    rules.finish(rules.start(GroupSlot(0, 2)))
    assert rules.compose() == [(0, 0), (0, 1), (0, 2)]


def test_groups_set_aside_before_a_kill_are_taken_besides_when_their_rewards_differ_now() -> None:
    rules = Pace(0, lambda step: 1, spare=2)
    for group in [rules.start(GroupSlot(0, problem), since=0) for problem in range(3)]:
        assert rules.compose() is None
        rules.finish(group)
    assert rules.compose() == [(0, 0), (0, 1), (0, 2)]


@dataclass
class Simulation:
    """A run with random durations of groups and updates, and kills; one clock, `slots` groups at once."""

    rng: random.Random
    k: int
    size: int
    steps: int
    slots: int
    spare: int = 0
    ages: list[int] = field(default_factory=list)
    trained: list[GroupSlot] = field(default_factory=list)
    batches: list[list[GroupSlot]] = field(default_factory=list)
    constant: dict[GroupSlot, bool] = field(default_factory=dict)
    begun: dict[GroupSlot, int] = field(default_factory=dict)  # groups with finished trials at a kill: since
    finished: set[GroupSlot] = field(default_factory=set)  # complete groups at a kill
    step: int = 0

    def run(self) -> None:
        while self.step < self.steps:
            self.process(self.rng.expovariate(1 / 30))

    def process(self, lives: float) -> None:
        """One process, killed at clock time `lives`; the next one goes on from what it left."""
        rules = Pace(self.k, lambda step: self.size if step < self.steps else 0, self.spare)
        if len(self.batches) > self.step:  # killed in an update: it is made again of the same groups
            self.step += 1
        rules.advance(self.step)
        groups = [rules.start(place, since) for place, since in sorted(self.begun.items())]
        events: list[tuple[float, int, OpenGroup]] = []
        order = 0

        started: dict[GroupSlot, int] = {}

        def push(group: OpenGroup, now: float) -> None:
            nonlocal order
            order += 1
            started[group.place] = group.since
            takes = 0.0 if group.place in self.finished else self.rng.paretovariate(1.1)
            heapq.heappush(events, (now + takes, order, group))

        for group in groups:
            push(group, 0.0)
        known = {*self.trained, *self.begun}
        batches = itertools.count() if self.spare else range(self.steps)
        places = (GroupSlot(b, p) for b in batches for p in range(self.size) if GroupSlot(b, p) not in known)
        now, update_ends = 0.0, None
        while self.step < self.steps and now <= lives:
            while len(events) < self.slots and rules.may_start():
                push(rules.start(next(places)), now)
            if update_ends is None and (chosen := rules.compose()) is not None:
                self.ages += [self.step - started[place] for place in chosen]
                self.trained += chosen
                self.batches.append(chosen)
                update_ends = now + self.rng.expovariate(0.5)
            assert events or update_ends is not None, "a step waits for nothing that runs"
            if events and (update_ends is None or events[0][0] <= update_ends):
                now, _, group = heapq.heappop(events)
                self.constant.setdefault(group.place, bool(self.spare) and self.rng.random() < 0.4)
                rules.finish(group, constant=self.constant[group.place])
            elif update_ends is not None:
                now, update_ends = update_ends, None
                self.step += 1
                rules.advance(self.step)
        running = [group for _, _, group in events]
        left = [group for group in running if self.rng.random() < 0.5]
        left += [
            OpenGroup(p, started[p], complete=True) for p in {*started} - {*self.trained} - {g.place for g in running}
        ]
        self.begun = {group.place: group.since for group in left}
        self.finished = {group.place for group in left if group.complete}
        for place in [place for place in self.finished if self.rng.random() < 0.2]:
            del self.constant[place]  # a lost trial runs again: its rewards may differ then
            self.finished.discard(place)


@pytest.mark.parametrize("seed", first(2, range(20)))
@pytest.mark.parametrize("spares", [(0,), (1, 2, 3, 4)])
def test_adversarial_timings_kills_and_constant_groups_never_make_a_sample_too_old(
    spares: tuple[int, ...], seed: int
) -> None:
    """50 runs each: 1,000 in all. With `spare`, some groups of a step fill no place."""
    rng = random.Random(seed)
    for _ in range(50):
        k, size, steps, spare = rng.randrange(4), rng.randrange(1, 6), rng.randrange(1, 12), rng.choice(spares)
        run = Simulation(rng, k, size, steps, slots=rng.randrange(1, 3 * size + 2), spare=spare)
        run.run()
        assert max(run.ages) <= k and len(run.batches) == steps
        assert len(run.trained) == len(set(run.trained)), "each group once"
        places = [GroupSlot(b, p) for b in range(steps) for p in range(size)]
        assert spare or sorted(run.trained) == places, "none discarded"
        assert k or spare or run.trained == places
        for batch in run.batches:
            signal = sum(not run.constant[place] for place in batch)
            assert size <= len(batch) <= size + spare
            assert signal >= size or len(batch) == size + spare, "constant groups fill a place when none is spare"
        assert {*run.constant} <= {*run.trained}, "no group that was complete is discarded"
