"""Files of the work that verification runs change its tests or its reward: they earn nothing, and honest ones do."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.plain_container import product_trials, what_earns, what_is_no_attack
from tests.support.tampering_attacks import ATTACKS, OWN_WAYS, attack, script, tampering_task
from tests.support.tiers import thirds

pytestmark = pytest.mark.usefixtures("docker_ready")


def attacks(folder: Path, names: Iterable[str]) -> dict[str, tuple[Path, str]]:
    return {name: (tampering_task(folder / name), attack(ATTACKS[name])) for name in names}


@pytest.mark.parametrize("names", thirds(ATTACKS))
async def test_what_the_work_does_to_verifications_own_files_earns_nothing(tmp_path: Path, names: list[str]) -> None:
    assert await what_earns(attacks(tmp_path, names)) == {}


@pytest.mark.nightly
async def test_they_earn_in_a_plain_container(tmp_path: Path) -> None:
    assert await what_is_no_attack(attacks(tmp_path, ATTACKS)) == {}


async def test_verifiers_that_change_their_own_files_pay_honest_work(tmp_path: Path) -> None:
    cases = [(tampering_task(tmp_path / f"way{name}", name), script({})) for name in ("", *OWN_WAYS)]
    trials = await product_trials(cases)
    assert [trial.reward for trial in trials] == [1] * len(cases), trials
