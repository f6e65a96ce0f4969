"""The number of starts at once on simulated daemons: small and large machines, with and without removals."""

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from harbortrainer.docker.keeping.removals import Removals, most_ended
from harbortrainer.rollout import start_limit
from harbortrainer.rollout.start_limit import FIRST, StartLimit, most_starts
from tests.support.virtual_time import SimulatedDaemon, VirtualLoop

N = 400
PLACES = 64


@dataclass
class Course:
    """`rate`: starts a second, of the second half. `limits`: after each start. `most`: containers at once."""

    rate: float
    limits: list[int]
    most: int = 0


async def run(cpus: int, *, removals: bool, behind: bool = True) -> Course:
    """`behind`: removals wait for their turn; otherwise all are made at once, and every start is taken as it is."""
    daemon, limit, turns = SimulatedDaemon(cpus), StartLimit(most_starts(cpus)), Removals(most_ended(cpus))
    loop, course, times = asyncio.get_running_loop(), Course(0.0, []), list[float]()
    removing = set[asyncio.Task[None]]()

    async def remove() -> None:
        nonlocal existing
        if behind:
            async with turns.turn():
                await daemon.remove()
        else:
            await daemon.remove()
        existing -= 1

    async def trial() -> None:
        nonlocal existing
        await limit.acquire()
        await turns.room()
        existing += 1
        course.most = max(course.most, existing)
        with turns.starting() as start:
            began = loop.time()
            await daemon.start()
        limit.release(loop.time() - began, disturbed=behind and start.disturbed)
        times.append(loop.time())
        course.limits.append(limit.limit)
        if removals:
            await asyncio.sleep(1.0)
            removing.add(asyncio.create_task(remove()))

    existing, places = 0, asyncio.Semaphore(PLACES)

    async def place() -> None:
        async with places:
            await trial()

    await asyncio.gather(*(place() for _ in range(N)))
    await asyncio.gather(*removing)
    assert turns.ended == 0
    course.rate = (N - N // 2) / (times[-1] - times[N // 2 - 1])
    return course


def simulate(monkeypatch: pytest.MonkeyPatch, cpus: int, *, removals: bool, behind: bool = True) -> Course:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        monkeypatch.setattr(start_limit, "time", SimpleNamespace(monotonic=runner.get_loop().time))
        return runner.run(run(cpus, removals=removals, behind=behind))


def test_two_processors_keep_the_first_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    course = simulate(monkeypatch, 2, removals=False)
    assert set(course.limits) == {FIRST} and course.rate > 0.9 * 2 / SimulatedDaemon.START_CPU


def test_sixteen_processors_find_more(monkeypatch: pytest.MonkeyPatch) -> None:
    course = simulate(monkeypatch, 16, removals=False)
    one_at_once = SimulatedDaemon.START_CPU + SimulatedDaemon.START_WAIT + SimulatedDaemon.START_LOCKED
    assert course.rate > 1.5 * FIRST / one_at_once
    assert FIRST < course.limits[-1] <= most_starts(16) and min(course.limits) == FIRST


@pytest.mark.parametrize("cpus", [2, 16])
def test_removals_behind_starts_neither_lower_the_limit_nor_pile_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cpus: int
) -> None:
    course = simulate(monkeypatch, cpus, removals=True)
    assert min(course.limits) == FIRST and "slowly" not in caplog.text
    assert FIRST < course.most <= PLACES + most_ended(cpus)


async def test_a_slow_start_beside_removals_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    limit = StartLimit(8)
    for seconds, disturbed in ((0.1, False), (60.0, True), (60.0, True)):
        await limit.acquire()
        limit.release(seconds, disturbed=disturbed)
    assert limit.limit == 8 and not caplog.text
    await limit.acquire()
    limit.release(60.0)
    assert limit.limit == 4
