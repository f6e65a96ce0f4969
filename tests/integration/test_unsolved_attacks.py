"""Where no solution tells what the work is: what leaves no content earns nothing, and honest work its reward."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.plain_container import plain_reward, product_trial, what_earns, what_is_no_attack
from tests.support.spoken_attacks import HONEST as SPOKEN_HONEST
from tests.support.spoken_attacks import SPOKEN, spoken_task
from tests.support.tiers import few
from tests.support.unsolved_attacks import HONEST, UNSOLVED, unsolved_task

pytestmark = pytest.mark.usefixtures("docker_ready")


def attacks(folder: Path, names: Iterable[str]) -> dict[str, tuple[Path, str]]:
    return {name: (unsolved_task(folder / name), UNSOLVED[name]) for name in names}


def spoken(folder: Path) -> dict[str, tuple[Path, str]]:
    return {name: (spoken_task(folder / name), script) for name, script in SPOKEN.items()}


@pytest.mark.parametrize("names", few(UNSOLVED))
async def test_attacks_on_a_task_without_a_solution_earn_nothing(tmp_path: Path, names: list[str]) -> None:
    assert await what_earns(attacks(tmp_path, names)) == {}


async def test_honest_work_on_a_task_without_a_solution_earns_its_reward(tmp_path: Path) -> None:
    task = unsolved_task(tmp_path)
    assert await asyncio.to_thread(plain_reward, task, "true") == 0
    trial = await product_trial(task, HONEST)
    assert trial.reward == 1, trial


@pytest.mark.nightly
async def test_settings_of_what_an_instruction_speaks_of_earn_nothing_by_programs_that_it_does_not_mean(
    tmp_path: Path,
) -> None:
    assert await what_earns(spoken(tmp_path)) == {}
    trial = await product_trial(spoken_task(tmp_path / "honest"), SPOKEN_HONEST)
    assert trial.reward == 1, trial


@pytest.mark.nightly
async def test_they_earn_in_a_plain_container(tmp_path: Path) -> None:
    assert await what_is_no_attack(attacks(tmp_path, UNSOLVED) | spoken(tmp_path)) == {}
