"""What no opened file shows: sockets of a moment, and files of which verification asks the name, size or time alone.

Each earns the reward without the work in a plain container.
"""

from pathlib import Path

import pytest

from tests.support.plain_container import product_trial, what_earns
from tests.support.unseen_attacks import HONEST, SCRATCH, UNSEEN, Unseen, serving, unseen_task

pytestmark = pytest.mark.usefixtures("docker_ready")


async def test_what_no_opened_file_shows_earns_nothing(tmp_path: Path) -> None:
    assert await what_earns({name: (unseen_task(tmp_path / name), serving(UNSEEN[name])) for name in UNSEEN}) == {}


@pytest.mark.parametrize("work", [HONEST, SCRATCH])
async def test_honest_work_earns_its_reward(tmp_path: Path, work: Unseen) -> None:
    trial = await product_trial(unseen_task(tmp_path), serving(work))
    assert trial.reward == 1, trial
