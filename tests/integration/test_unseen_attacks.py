"""What no opened file shows: sockets of a moment, and files of which verification asks the name, size or time alone."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.plain_container import product_trials, what_earns, what_is_no_attack
from tests.support.tiers import few
from tests.support.unseen_attacks import HONEST, SCRATCH, UNSEEN, serving, unseen_task

pytestmark = pytest.mark.usefixtures("docker_ready")
WORK = {"honest": HONEST, "scratch": SCRATCH}


def attacks(folder: Path, names: Iterable[str]) -> dict[str, tuple[Path, str]]:
    return {name: (unseen_task(folder / name), serving(UNSEEN[name])) for name in names}


@pytest.mark.parametrize("names", few(UNSEEN))
async def test_what_no_opened_file_shows_earns_nothing(tmp_path: Path, names: list[str]) -> None:
    assert await what_earns(attacks(tmp_path, names)) == {}


@pytest.mark.nightly
async def test_they_earn_in_a_plain_container(tmp_path: Path) -> None:
    assert await what_is_no_attack(attacks(tmp_path, UNSEEN)) == {}


async def test_honest_work_earns_its_reward(tmp_path: Path) -> None:
    trials = await product_trials((unseen_task(tmp_path / name), serving(work)) for name, work in WORK.items())
    assert [trial.reward for trial in trials] == [1, 1], trials
