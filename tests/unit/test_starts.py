"""Starts and removals on simulated daemons: small and large machines."""

import asyncio

import pytest

from harbortrainer.docker.keeping.removals import Removals, most_ended
from harbortrainer.rollout.gates import STARTS, STARTS_PER_CPU
from harbortrainer.rollout.slots import Slots
from tests.support.virtual_time import SimulatedDaemon, in_virtual_time

N = 400
PLACES = 64


async def run(cpus: int, *, removals: bool) -> tuple[float, int]:
    """Starts a second, of the second half; the most containers at once."""
    daemon, limit, turns = SimulatedDaemon(cpus), Slots(max(STARTS, STARTS_PER_CPU * cpus)), Removals(most_ended(cpus))
    loop, times, removing = asyncio.get_running_loop(), list[float](), set[asyncio.Task[None]]()

    async def remove() -> None:
        nonlocal existing
        async with turns.turn():
            await daemon.remove()
        existing -= 1

    async def trial() -> None:
        nonlocal existing, most
        async with places:
            async with limit:
                await turns.room()
                existing += 1
                most = max(most, existing)
                with turns.starting():
                    await daemon.start()
            times.append(loop.time())
            if removals:
                await asyncio.sleep(1.0)
                removing.add(asyncio.create_task(remove()))

    existing, most, places = 0, 0, asyncio.Semaphore(PLACES)
    await asyncio.gather(*(trial() for _ in range(N)))
    await asyncio.gather(*removing)
    assert turns.ended == 0
    return (N - N // 2) / (times[-1] - times[N // 2 - 1]), most


def test_two_processors_are_busy_and_sixteen_start_more_at_once() -> None:
    assert in_virtual_time(run(2, removals=False))[0] > 0.9 * 2 / SimulatedDaemon.START_CPU
    one_at_once = SimulatedDaemon.START_CPU + SimulatedDaemon.START_WAIT + SimulatedDaemon.START_LOCKED
    assert in_virtual_time(run(16, removals=False))[0] > 1.5 * STARTS / one_at_once


@pytest.mark.parametrize("cpus", [2, 16])
def test_removals_behind_starts_do_not_pile_up(cpus: int) -> None:
    assert STARTS < in_virtual_time(run(cpus, removals=True))[1] <= PLACES + most_ended(cpus)
