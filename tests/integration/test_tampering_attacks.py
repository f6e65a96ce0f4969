"""Files of the work that verification runs change its tests or its reward: they earn nothing, and honest ones do."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from harbortrainer.docker.daemon import engine, pid_of
from tests.support.docker_parts import watcher
from tests.support.plain_container import product_trial, product_trials, what_earns, what_is_no_attack
from tests.support.tampering_attacks import ATTACKS, OWN_WAYS, WAITS, attack, script, tampering_task
from tests.support.tiers import few

pytestmark = pytest.mark.usefixtures("docker_ready")


def attacks(folder: Path, names: Iterable[str]) -> dict[str, tuple[Path, str]]:
    return {name: (tampering_task(folder / name), attack(ATTACKS[name])) for name in names}


@pytest.mark.parametrize("names", few(ATTACKS))
async def test_what_the_work_does_to_verifications_own_files_earns_nothing(tmp_path: Path, names: list[str]) -> None:
    assert await what_earns(attacks(tmp_path, names)) == {}


@pytest.mark.nightly
async def test_they_earn_in_a_plain_container(tmp_path: Path) -> None:
    assert await what_is_no_attack(attacks(tmp_path, ATTACKS)) == {}


async def test_verifiers_that_change_their_own_files_pay_honest_work(tmp_path: Path) -> None:
    cases = [(tampering_task(tmp_path / f"way{name}", name), script({})) for name in ("", *OWN_WAYS)]
    trials = await product_trials(cases)
    assert [trial.reward for trial in trials] == [1] * len(cases), trials


@pytest.mark.nightly
async def test_a_reward_whose_writer_was_not_looked_at_is_measured_once_more(tmp_path: Path) -> None:
    """The watcher stands still while a short process writes the reward."""
    (way,) = WAITS
    trial = asyncio.create_task(product_trial(tampering_task(tmp_path / way, way), f"{script({})}\ntouch /app/wait"))
    app = await found_below("app/waits")
    stopped = watcher()
    os.kill(stopped, signal.SIGSTOP)
    try:
        (app / "goes").touch()
        await found_below("app/written")
    finally:
        os.kill(stopped, signal.SIGCONT)
    while not (await asyncio.wait([trial], timeout=0.1))[0]:  # what was made is taken away before the second one
        with contextlib.suppress(OSError):
            (app / "goes").touch()
    assert trial.result().reward == 1, trial.result().fault


async def found_below(name: str) -> Path:
    """The folder of this file in the container that has it."""
    async with asyncio.timeout(60):
        while True:
            for one in await asyncio.to_thread(engine().containers):
                with contextlib.suppress(OSError):  # it ends just now
                    path = Path(f"/proc/{pid_of(one['Id'])}/root/{name}")
                    if path.exists():
                        return path.parent
            await asyncio.sleep(0.02)
