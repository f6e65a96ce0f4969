"""Which host runs a trial, and what happens when there is none."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from harbortrainer.errors import EnvironmentFault
from harbortrainer.rollout.fleet import Fleet, FleetHost
from harbortrainer.rollout.gates import TrialObserver
from harbortrainer.rollout.slots import Slots
from tests.support.fakes import let_others_act


class FakeHost(FleetHost):
    def __init__(self, name: str, places: int = 1) -> None:
        self.name, self.n, self.lost, self.closed = name, places, 0, 0

    @property
    def places(self) -> int:
        return self.n

    @property
    def outages(self) -> int:
        return self.lost

    async def run(self, request: Any) -> Any:
        raise AssertionError("not asked for")

    async def close(self) -> None:
        self.closed += 1


class Trials:
    """Trials that hold their host until they are ended."""

    def __init__(self, fleet: Fleet, gate: Slots) -> None:
        self._fleet, self._gate = fleet, gate
        self.on: dict[int, str] = {}
        self._ends: dict[int, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self, number: int) -> None:
        first = len(self.tasks)
        self.tasks += [asyncio.create_task(self._one(first + n)) for n in range(number)]
        await let_others_act()

    async def end(self, trial: int) -> None:
        self._ends[trial].set()
        await let_others_act()

    async def _one(self, trial: int) -> None:
        self._ends[trial] = asyncio.Event()
        async with self._gate, self._fleet.host() as host:
            self.on[trial] = host.name
            await self._ends[trial].wait()


@contextlib.asynccontextmanager
async def fleet_of(*hosts: FakeHost, limit_sec: float = 60.0):
    gate = Slots(1)
    fleet = Fleet(gate, limit_sec)
    for host in hosts:
        fleet.join(host)
    trials = Trials(fleet, gate)
    try:
        yield fleet, trials
    finally:
        for task in trials.tasks:
            task.cancel()
        await asyncio.gather(*trials.tasks, return_exceptions=True)


async def test_each_trial_gets_the_host_with_the_largest_free_share() -> None:
    async with fleet_of(FakeHost("small", 2), FakeHost("large", 4)) as (_, trials):
        await trials.start(7)
        assert [trials.on[n] for n in range(6)] == ["small", "large", "large", "small", "large", "large"]
        assert 6 not in trials.on, "all places are taken"
        await trials.end(3)
        assert trials.on[6] == "small"


async def test_the_observer_sees_each_hosts_trials_and_the_metrics_count_losses() -> None:
    class Seen(TrialObserver):
        now: Any = None

        def hosts(self, trials: Mapping[str, tuple[int, int]], lost: int) -> None:
            self.now = trials, lost

    gate, seen, small = Slots(1), Seen(), FakeHost("small", 2)
    fleet = Fleet(gate, 60.0, seen)
    fleet.join(small)
    fleet.join(FakeHost("large", 4))
    async with gate, fleet.host():
        assert seen.now == ({"small": (1, 2), "large": (0, 4)}, 0)
    fleet.leave(small)
    assert seen.now == ({"large": (0, 4)}, 1)
    assert fleet.metrics == {"hosts/joined": 1.0, "hosts/places": 4.0, "hosts/lost": 1.0}


async def test_a_host_that_left_gets_no_trial_and_its_places_are_gone() -> None:
    a, b = FakeHost("a", 2), FakeHost("b", 2)
    async with fleet_of(a, b) as (fleet, trials):
        await trials.start(4)
        a.lost += 1
        fleet.leave(a)
        fleet.leave(a)
        assert fleet.hosts == [b]
        lost = [trial for trial, name in trials.on.items() if name == "a"]
        for trial in lost:
            await trials.end(trial)
        await trials.start(1)
        assert 4 not in trials.on, "the trials of the lost host have ended, and b is full"
        await trials.end(next(trial for trial, name in trials.on.items() if name == "b"))
        assert trials.on[4] == "b"


async def test_without_a_host_trials_wait_for_the_next_one() -> None:
    async with fleet_of() as (fleet, trials):
        await trials.start(3)
        assert trials.on == {}
        fleet.join(FakeHost("late", 2))
        await let_others_act()
        assert trials.on == {0: "late", 1: "late"}


async def test_without_a_host_for_too_long_the_run_ends() -> None:
    async with fleet_of(limit_sec=0.01) as (_, trials):
        await trials.start(1)
        with pytest.raises(EnvironmentFault, match=r"no host for trials in 0\.01 s: start one.*outage_limit_sec"):
            await trials.tasks[0]
