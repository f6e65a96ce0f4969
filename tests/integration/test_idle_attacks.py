"""What does nothing during verification earns nothing: processes that sleep, kernel objects, properties of files."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support import system_attacks
from tests.support.docker_parts import write_task
from tests.support.idle_attacks import FEW_TERMINALS, IDLE, WITHOUT_CONTENT, idle, idle_task
from tests.support.plain_container import product_trials, what_earns, what_is_no_attack
from tests.support.tiers import few, first

pytestmark = pytest.mark.usefixtures("docker_ready")


def attacks(folder: Path, names: Iterable[str], *, solved: bool = True) -> dict[str, tuple[Path, str]]:
    return {name: (idle_task(folder / name, name, solved=solved), idle(IDLE[name])) for name in names}


@pytest.mark.parametrize("names", few(IDLE))
async def test_what_does_nothing_during_verification_earns_nothing(tmp_path: Path, names: list[str]) -> None:
    assert await what_earns(attacks(tmp_path, names)) == {}


@pytest.mark.nightly
async def test_it_earns_nothing_without_a_solution_either(tmp_path: Path) -> None:
    unsolved = attacks(tmp_path, [name for name in IDLE if name not in WITHOUT_CONTENT], solved=False)
    assert await what_earns(unsolved) == {}


@pytest.mark.nightly
async def test_they_earn_in_a_plain_container(tmp_path: Path) -> None:
    assert await what_is_no_attack(attacks(tmp_path, IDLE)) == {}


@pytest.mark.parametrize("more", first(1, ["", "ENTRYPOINT []\nUSER nobody\n"]))
async def test_a_container_cannot_take_the_terminals_of_all_others(tmp_path: Path, more: str) -> None:
    task = write_task(tmp_path / "task", dockerfile=f"{system_attacks.BASE}{more}WORKDIR /\n", test=FEW_TERMINALS)
    (trial,) = await product_trials([(task, "true")])
    assert trial.reward == 1, trial
