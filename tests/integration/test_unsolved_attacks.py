"""Where no solution tells what the work is: what leaves no content earns nothing, and honest work its reward."""

import asyncio
from pathlib import Path

import pytest

from tests.support.plain_container import plain_reward, product_trial
from tests.support.tiers import first
from tests.support.unsolved_attacks import HONEST, UNSOLVED, unsolved_task

pytestmark = pytest.mark.usefixtures("docker_ready")


@pytest.mark.parametrize("name", first(10, UNSOLVED))
async def test_attacks_on_a_task_without_a_solution_earn_nothing(tmp_path: Path, name: str) -> None:
    task = unsolved_task(tmp_path)
    assert await asyncio.to_thread(plain_reward, task, UNSOLVED[name]) == 1
    trial = await product_trial(task, UNSOLVED[name])
    assert trial.reward == 0 or (trial.reward is None and "the reward depends on" in trial.fault), trial


async def test_honest_work_on_a_task_without_a_solution_earns_its_reward(tmp_path: Path) -> None:
    task = unsolved_task(tmp_path)
    assert await asyncio.to_thread(plain_reward, task, "true") == 0
    trial = await product_trial(task, HONEST)
    assert trial.reward == 1, trial
