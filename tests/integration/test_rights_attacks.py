"""Rights that no file's mode shows: whoever takes them from the tests' user earns nothing without the work."""

from pathlib import Path

import pytest

from tests.support.plain_container import product_trial, what_earns
from tests.support.rights_attacks import NAMES, RIGHTS, SERVES, WORKS, rights_task

pytestmark = pytest.mark.usefixtures("docker_ready")


@pytest.mark.parametrize("served", [False, True])
async def test_rights_taken_away_earn_nothing(tmp_path: Path, served: bool) -> None:
    more = SERVES if served else ""
    tasks = {name: rights_task(tmp_path / name, served=served) for name in RIGHTS}
    assert await what_earns({name: (tasks[name], RIGHTS[name] + more) for name in RIGHTS}) == {}


async def test_a_name_in_etc_hosts_beside_a_service_costs_no_reward(tmp_path: Path) -> None:
    trial = await product_trial(rights_task(tmp_path, served=True), NAMES + WORKS + SERVES)
    assert trial.reward == 1, trial
