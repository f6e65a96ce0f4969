"""What stands behind a file that verification opens earns nothing; honest work its reward."""

from pathlib import Path

import pytest

from tests.support.package_attacks import HONEST, SOLVE, SOLVED, UNSOLVED, package_task
from tests.support.plain_container import product_trials, what_earns, what_is_no_attack

pytestmark = pytest.mark.usefixtures("docker_ready")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


BY_DAY = ["the-solutions-module-with-other-content", "a-module-behind-its-compiled-form", next(iter(UNSOLVED))]


def attacks(folder: Path) -> dict[str, tuple[Path, str]]:
    cases = {name: (True, script) for name, script in SOLVED.items()}
    cases |= {name: (False, script) for name, script in UNSOLVED.items()}
    return {name: (package_task(folder / name, solved=solved), script) for name, (solved, script) in cases.items()}


@pytest.mark.parametrize("by_day", [True, pytest.param(False, marks=pytest.mark.nightly)])
async def test_what_stands_behind_a_file_earns_nothing(tmp_path: Path, *, by_day: bool) -> None:
    chosen = {name: one for name, one in attacks(tmp_path).items() if (name in BY_DAY) is by_day}
    assert await what_earns(chosen) == {}


async def test_another_version_of_the_solutions_module_earns_the_works_reward(tmp_path: Path) -> None:
    cases = [(package_task(tmp_path / str(solved), solved=solved), script) for solved, script in HONEST.items()]
    found = await product_trials([*cases, (package_task(tmp_path / "same", solved=True), SOLVE)])
    assert [trial.reward for trial in found] == [1, 1, 1], found


@pytest.mark.nightly
async def test_they_earn_in_a_plain_container(tmp_path: Path) -> None:
    assert await what_is_no_attack(attacks(tmp_path)) == {}
