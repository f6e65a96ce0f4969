"""`n_parallel_envs=auto` in a run: agents that take turns with a simulated server, in virtual time."""

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.config import Config
from harbortrainer.docker.checks.host import REMOTE, EnvironmentHost
from harbortrainer.docker.checks.preflight import BUSY_CPUS, MEMORY_SHARE, TaskNeeds, capacity
from harbortrainer.durable.jsonl import append_line
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import COUNTERS
from harbortrainer.rollout import slots
from harbortrainer.rollout.concurrency import ParallelLimit, level_of
from harbortrainer.rollout.gates import Gates, TrialObserver, most_agents, n_containers
from harbortrainer.rollout.level import Level, Why
from harbortrainer.rollout.slots import Slots
from harbortrainer.rollout.venue import agents_at_once, checked_venues
from harbortrainer.venues.harbor.venue import HarborVenue
from tests.conftest import ROOT
from tests.support.virtual_time import in_virtual_time

AUTO = Config(model_name="m", tasks_dir=".", n_parallel_envs="auto")
GIB = 2**30


class Noted(TrialObserver):
    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def limited(self, agents: int, why: str) -> None:
        self.seen.append((agents, why))


class Rig:
    """Trials of `turns` turns; an answer takes a second while at most `capacity` requests are in flight."""

    def __init__(self, capacity: int, most: int = 200, limit: int | None = None) -> None:
        self.capacity, self.outages, self.running, self.most_running = capacity, 0, 0, 0
        self.level = Level(most, limit)
        self.observer = Noted()
        self.counters: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)
        self.rng = random.Random(0)
        self.pause = 0.0  # every answer takes this much longer
        self._in_flight = 0

    async def begin(self) -> None:
        clock = asyncio.get_running_loop().time
        self.gates = Gates.of(AUTO, self.level.limit)
        for gate in (self.gates.containers, self.gates.running, self.gates.verifying):
            gate._clock, gate._counted_at = clock, clock()
        sampler: Any = SimpleNamespace(counters=self.counters)
        self.parallel = ParallelLimit(AUTO, self.gates, self.level, sampler, lambda: self.outages, self.observer, clock)

    async def trial(self, turns: int = 5) -> None:
        async with self.gates.containers:
            await asyncio.sleep(0.2)
            async with self.gates.running:
                self.running += 1
                self.most_running = max(self.running, self.most_running)
                for _ in range(turns):
                    await self.answer()
                    await asyncio.sleep(self.rng.uniform(0.5, 1.5))  # a command
                self.running -= 1
            async with self.gates.verifying:
                await asyncio.sleep(0.3)

    async def answer(self) -> None:
        self._in_flight += 1
        seconds = max(1.0, self._in_flight / self.capacity) * self.rng.uniform(0.8, 1.2) + self.pause
        await asyncio.sleep(seconds)
        self._in_flight -= 1
        for name, more in (("requests", 1), ("sampled_tokens", 50), ("request_seconds", seconds)):
            self.counters[name] += more

    async def batch(self, trials: int) -> None:
        await asyncio.gather(*(self.trial() for _ in range(trials)))

    async def conversation(self, turns: int = 5) -> None:
        """A trial without a container."""
        async with self.gates.running:
            for _ in range(turns):
                await self.answer()


@pytest.fixture(autouse=True)
def _virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots.time, "monotonic", lambda: 0.0)


def test_one_long_batch_finds_the_capacity() -> None:
    rig = Rig(capacity=40)

    async def run() -> float:
        await rig.begin()
        await rig.batch(6000)
        return asyncio.get_running_loop().time()

    seconds = in_virtual_time(run())
    assert 40 <= rig.level.limit <= 160 and rig.most_running <= rig.level.most
    at_the_knee = 6000 * 5 / 40  # turns over requests at once, of a second each
    assert seconds <= at_the_knee / 0.75, "the whole run, its first windows included"
    assert [agents for agents, _ in rig.observer.seen[:4]] == [8, 16, 32, 64]
    assert rig.parallel.metrics["rollout/parallel_limit"] == rig.level.limit
    assert rig.parallel.metrics["rollout/parallel_changes"] == len(rig.observer.seen) - 1


def test_trials_without_containers_find_the_capacity_too() -> None:
    rig = Rig(capacity=40)

    async def run() -> None:
        await rig.begin()
        await asyncio.gather(*(rig.conversation() for _ in range(3000)))

    in_virtual_time(run())
    assert 30 <= rig.level.limit <= 160, rig.observer.seen


def test_batches_one_after_another_are_one_measurement() -> None:
    """A batch of 48 trials has a tail, and an update follows: neither counts."""
    rig = Rig(capacity=1000)

    async def run() -> None:
        await rig.begin()
        for _ in range(40):
            await rig.batch(48)
            await asyncio.sleep(30)

    in_virtual_time(run())
    limits = [agents for agents, _ in rig.observer.seen]
    assert limits[:3] == [8, 16, 32] and max(limits) <= 64
    assert n_containers(AUTO, rig.level.limit) <= 48, "what a batch cannot fill is not kept"


def test_few_trials_change_nothing() -> None:
    rig = Rig(capacity=1000)

    async def run() -> None:
        await rig.begin()
        for _ in range(300):
            await rig.batch(6)

    in_virtual_time(run())
    assert rig.observer.seen == [(8, Why.START.words)]


@pytest.mark.parametrize("kind", ["compile", "outage"])
def test_a_pause_is_no_sign(kind: str) -> None:
    """At the limit that it keeps, the server compiles for a minute twice, or Docker is away: the limit stays."""
    rig = Rig(capacity=1000, most=8)

    async def run() -> None:
        await rig.begin()
        batch = asyncio.create_task(rig.batch(200))
        for _ in range(2):
            await asyncio.sleep(100)
            rig.pause = 60.0
            rig.outages += kind == "outage"
            await asyncio.sleep(10)
            rig.pause = 0.0
        await batch

    in_virtual_time(run())
    assert Why.LATENCY.words not in [why for _, why in rig.observer.seen]
    assert min(agents for agents, _ in rig.observer.seen) >= 6, "no more than the usual try of fewer"


def test_slow_starts_of_containers_are_a_sign() -> None:
    rig = Rig(capacity=1000, limit=100)

    async def run() -> None:
        await rig.begin()
        rig.gates.starting.halvings += 1
        await rig.batch(200)

    in_virtual_time(run())
    assert rig.observer.seen[1] == (75, Why.SLOW_STARTS.words)


def test_a_number_stays() -> None:
    config = Config(model_name="m", tasks_dir=".", n_parallel_envs=4)
    assert level_of(config, 100) is None
    gates = Gates.of(config)
    sampler: Any = SimpleNamespace(counters=dict.fromkeys(COUNTERS, 0.0))
    parallel = ParallelLimit(config, gates, None, sampler, lambda: 0)
    gates.containers.released()
    parallel.noted()
    assert parallel.metrics == {} and (gates.running.limit, gates.containers.limit) == (4, 5)


def test_a_continued_run_begins_where_it_was_within_todays_bound(tmp_path: Path) -> None:
    rows = [{"rollout/parallel_limit": 24.0}, {"rollout/parallel_limit": 48.0}, {"eval/reward_mean": 0.5}]
    metrics = tmp_path / "metrics.jsonl"
    new = level_of(AUTO, 100, metrics)
    for row in rows:
        append_line(metrics, row)
    continued, smaller = level_of(AUTO, 100, metrics), level_of(AUTO, 40, metrics)
    assert continued and smaller and new
    assert (continued.limit, smaller.limit, new.limit) == (48, 40, 8)


class OneHost(EnvironmentHost):
    def __init__(self, environments: int) -> None:
        self.environments, self.checked = environments, 0

    def check(self, tasks: Any, n_containers: int, environment_kwargs: Any, beside_mb: int = 0) -> list[str]:
        self.checked = n_containers
        return []

    def capacity(self, tasks: Any, environment_kwargs: Any, beside_mb: int = 0) -> tuple[int, str]:
        return self.environments, "memory"


def test_the_venue_is_asked_for_its_capacity_and_checked_for_it() -> None:
    host, template, four = (
        OneHost(50),
        object.__new__(ChatTemplate),
        Config(model_name="m", tasks_dir=".", n_parallel_envs=4),
    )
    venues = {"harbor": HarborVenue(host)}
    task: Any = SimpleNamespace(venue="harbor", ref=str(ROOT / "datasets/quickstart/create-1"))
    assert checked_venues([task], AUTO, template, venues) == (
        ["n_parallel_envs=auto: 8 agents at once at first, at most 40 (memory)"],
        40,
    )
    assert host.checked == 50
    assert checked_venues([task], four, template, venues) == ([], 4)
    assert host.checked == 5
    assert EnvironmentHost.capacity(host, [], {})[0] == REMOTE


def test_the_least_capacity_of_all_venues_counts() -> None:
    _, agents = agents_at_once({"one": HarborVenue(OneHost(50)), "other": HarborVenue(OneHost(5))}, [], AUTO)
    assert agents == 4


@pytest.mark.parametrize("environments", [1, 2, 3, 9, 10, 11, 500])
def test_the_most_agents_of_a_number_of_environments(environments: int) -> None:
    agents = most_agents(AUTO, environments)
    assert agents == 1 or n_containers(AUTO, agents) <= environments
    assert n_containers(AUTO, agents + 1) > environments


@pytest.mark.parametrize(
    ("needs", "networks", "files", "environments", "why"),
    [
        ([TaskNeeds("a", Path("a"), 1, 512), TaskNeeds("b", Path("b"), 1, 1536)], None, 10**6, 12, "memory"),
        ([TaskNeeds("a", Path("a"), 0.1, 0)], None, 10**6, 24, "memory"),  # without a limit
        ([TaskNeeds("a", Path("a"), 4, 64)], None, 10**6, BUSY_CPUS * 2 // 4, "processors"),
        ([TaskNeeds("a", Path("a"), 0.01, 1)], None, 10**6, 1000, "network"),
        ([TaskNeeds("a", Path("a"), 1, 64)], None, 256 + 8 * 5, 5, "open files"),
        ([TaskNeeds("a", Path("a"), 1, 64, True, 2)], 7, 10**6, 3, "networks of compose"),
        ([TaskNeeds("a", Path("a"), 1, 10**6)], None, 10**6, 1, "memory"),
        ([], None, 10**6, 16, "processors"),
    ],
)
def test_what_bounds_the_environments(
    needs: list[TaskNeeds], networks: int | None, files: int, environments: int, why: str
) -> None:
    most, bound = capacity(needs, 16 * GIB, 2, files, networks)
    assert (most, why in bound) == (environments, True), bound
    if why == "memory" and environments > 1:
        each = sum(task.memory_mb or 512 for task in needs) / len(needs)
        assert environments * each <= MEMORY_SHARE * 16 * 1024


async def test_slots_are_given_in_order_and_resized_while_held() -> None:
    gate, order = Slots(2), []

    async def take(number: int) -> None:
        await gate.acquire()
        order.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert order == [0, 1] and gate.taken == gate.limit
    gate.resize(3)
    await asyncio.sleep(0)
    assert order == [0, 1, 2]
    gate.resize(1)
    gate.release()
    gate.release()
    await asyncio.sleep(0)
    assert order == [0, 1, 2] and gate.taken == 1, "those above the limit are not given again"
    tasks[3].cancel()
    await asyncio.sleep(0)
    gate.release()
    await asyncio.sleep(0)
    assert order == [0, 1, 2, 4]
    gate.release()
    assert gate.taken == 0


async def test_a_slot_given_to_a_cancelled_waiter_is_given_on() -> None:
    gate = Slots(1)
    await gate.acquire()
    first, second = (asyncio.create_task(gate.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    gate.release()
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert gate.taken == 1 and not second.cancelled()
