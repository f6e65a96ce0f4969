"""Limits of a run: fewer starts while the daemon is slow, a rate, and how many containers live at once."""

import asyncio
from typing import Any

import pytest

from harbortrainer.config import Config
from harbortrainer.rollout import start_limit
from harbortrainer.rollout.gates import Gates, n_containers
from harbortrainer.rollout.start_limit import StartLimit


async def most_at_once(limit: StartLimit, starts: int) -> int:
    """How many of so many starts are under way together; they say nothing about their time."""
    running = most = 0

    async def start() -> None:
        nonlocal running, most
        await limit.acquire()
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        limit.release()

    await asyncio.gather(*(start() for _ in range(starts)))
    return most


async def finish(limit: StartLimit, *seconds: float) -> None:
    for took in seconds:
        await limit.acquire()
        limit.release(took)


async def test_slow_starts_halve_the_limit_and_good_ones_bring_it_back(caplog: pytest.LogCaptureFixture) -> None:
    limit = StartLimit(8)
    assert await most_at_once(limit, 20) == 8
    await finish(limit, 0.3, 60.0)
    assert await most_at_once(limit, 20) == limit.limit == 4
    assert "4 at once instead of 8" in caplog.text and "60.0 s" in caplog.text
    await finish(limit, *[0.3] * (4 * start_limit.STARTS_BEFORE_MORE))
    assert await most_at_once(limit, 20) == limit.limit == 8
    await finish(limit, *[0.3] * 20)
    assert limit.limit == 8, "never more than the setting"


async def test_starts_that_were_under_way_together_count_as_one_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(start_limit.time, "monotonic", lambda: now)
    limit = StartLimit(8)
    await finish(limit, 0.1, 30.0, 30.0, 30.0)
    assert limit.limit == 4
    now += 31
    await finish(limit, 30.0)
    assert limit.limit == 2


async def test_one_start_is_always_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(start_limit.time, "monotonic", lambda: now)
    limit = StartLimit(3)
    await finish(limit, 0.1)
    for _ in range(5):
        await finish(limit, 30.0)
        now += 100
    assert limit.limit == 1 and await most_at_once(limit, 4) == 1


async def test_a_machine_that_is_always_slow_is_not_slowed_further() -> None:
    limit = StartLimit(4)
    await finish(limit, *[20.0] * 10)
    assert limit.limit == 4


async def test_failed_and_cancelled_starts_give_their_place_back() -> None:
    limit = StartLimit(1)
    await limit.acquire()
    waiting = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    limit.release()
    await limit.acquire()


@pytest.mark.parametrize(
    ("fields", "containers"),
    [
        ({"n_parallel_envs": 8}, 10),
        ({"n_parallel_envs": 1}, 2),
        ({"n_parallel_envs": 8, "environment_type": "daytona"}, 8),
    ],
)
def test_containers_are_those_that_run_and_those_kept_warm(fields: dict[str, Any], containers: int) -> None:
    assert n_containers(Config(model_name="m", tasks_dir=".", **fields)) == containers


async def test_verifiers_have_a_limit_of_their_own() -> None:
    made = Gates.of(Config(model_name="m", tasks_dir=".", n_parallel_envs=2))
    await made.verifying.acquire()
    await made.verifying.acquire()
    assert made.verifying.taken == made.verifying.limit and made.running.taken < made.running.limit
