"""A service that the task asks for acts on its verification, and leaves no file that would tell.

Each earns the reward without the work in a plain container.
"""

import asyncio
from pathlib import Path

import pytest

from tests.support.plain_container import plain_reward, product_trial
from tests.support.quiet_attacks import HONEST, QUIET, quiet_task, serving

pytestmark = pytest.mark.usefixtures("docker_ready")


@pytest.mark.parametrize("name", QUIET)
async def test_an_asked_service_earns_nothing_by_what_no_file_shows(tmp_path: Path, name: str) -> None:
    task, script = quiet_task(tmp_path), serving(QUIET[name])
    assert await asyncio.to_thread(plain_reward, task, script) == 1
    trial = await product_trial(task, script)
    assert trial.reward == 0 or (trial.reward is None and "the reward depends on" in trial.fault), trial


async def test_an_honest_service_earns_its_reward(tmp_path: Path) -> None:
    trial = await product_trial(quiet_task(tmp_path), serving(HONEST))
    assert trial.reward == 1, trial
