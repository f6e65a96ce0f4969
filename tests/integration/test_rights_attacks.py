"""Rights that no file's mode shows: whoever takes them from the tests' user earns nothing without the work."""

from pathlib import Path

import pytest

from tests.support.plain_container import product_trial, what_earns, what_is_no_attack
from tests.support.rights_attacks import NAMES, RIGHTS, SERVES, WORKS, rights_task
from tests.support.tiers import first

pytestmark = pytest.mark.usefixtures("docker_ready")


def attacks(folder: Path, served: bool) -> dict[str, tuple[Path, str]]:
    more = SERVES if served else ""
    return {name: (rights_task(folder / name, served=served), RIGHTS[name] + more) for name in RIGHTS}


@pytest.mark.parametrize("served", first(1, [True, False]))
async def test_rights_taken_away_earn_nothing(tmp_path: Path, served: bool) -> None:
    assert await what_earns(attacks(tmp_path, served)) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("served", [False, True])
async def test_they_earn_in_a_plain_container(tmp_path: Path, served: bool) -> None:
    assert await what_is_no_attack(attacks(tmp_path, served)) == {}


async def test_a_name_in_etc_hosts_beside_a_service_costs_no_reward(tmp_path: Path) -> None:
    trial = await product_trial(rights_task(tmp_path, served=True), NAMES + WORKS + SERVES)
    assert trial.reward == 1, trial
