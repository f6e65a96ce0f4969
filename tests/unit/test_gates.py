"""Limits of a run: how many containers start, and live, at once."""

import asyncio
from typing import Any

import pytest

from harbortrainer.config import Config
from harbortrainer.rollout.gates import n_containers
from harbortrainer.rollout.slots import Slots


async def test_failed_and_cancelled_starts_give_their_place_back() -> None:
    limit = Slots(1)
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
