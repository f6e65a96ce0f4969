"""What no opened file shows: sockets of a moment, and files of which verification asks the name, size or time alone.

Each earns the reward without the work in a plain container.
"""

import asyncio
from pathlib import Path

import pytest

from tests.support.plain_container import plain_reward, product_trial
from tests.support.unseen_attacks import HONEST, SCRATCH, UNSEEN, Unseen, serving, unseen_task

pytestmark = pytest.mark.usefixtures("docker_ready")


@pytest.mark.parametrize("name", UNSEEN)
async def test_what_no_opened_file_shows_earns_nothing(tmp_path: Path, name: str) -> None:
    task, script = unseen_task(tmp_path), serving(UNSEEN[name])
    assert await asyncio.to_thread(plain_reward, task, script) == 1
    trial = await product_trial(task, script)
    assert trial.reward == 0 or (trial.reward is None and "the reward depends on" in trial.fault), trial


@pytest.mark.parametrize("work", [HONEST, SCRATCH])
async def test_honest_work_earns_its_reward(tmp_path: Path, work: Unseen) -> None:
    trial = await product_trial(unseen_task(tmp_path), serving(work))
    assert trial.reward == 1, trial
