"""Nobody voids a grade of 0, or disturbs the trainer, by what is left in a container."""

import asyncio
import time
from pathlib import Path

import pytest

from harbortrainer.docker.box import shell
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.venues.harbor import terminal
from tests.support.cause_tasks import cause_task
from tests.support.plain_container import product_trial
from tests.support.tiers import first
from tests.support.trial_parts import answer, local_host, make_task, request
from tests.support.void_attacks import LIMIT_SEC, MOST_LAG_SEC, MOST_MB, TASK, TRICKS, watched

pytestmark = pytest.mark.usefixtures("docker_ready")
TRIES = 3
DONE = answer(complete=True)
BY_DAY = [name for name, trick in TRICKS.items() if trick.quick][::6]
BESIDE = ("log-fits-a-transfer", "verifier-is-sparse", "users-are-a-pipe", "shell-prints")
_HANGS = "printf '#!/bin/sh\\nsleep 100000\\n' > /new; chmod +x /new; mv /new "
TERMINAL = {
    "tmux-stopped": "kill -STOP $(pgrep tmux)\n",
    "tmux-sleeps": f"{_HANGS} $(command -v tmux)\n",
    "all-stopped": "(sleep 0.5; kill -STOP -1) &\n",
    "all-killed-bash-sleeps": f"{_HANGS} $(command -v bash); kill -9 -1\n",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def wrong(folder: Path, name: str) -> str:
    """What a trick does to its grade or to the trainer; "" = nothing."""
    trick, lost = TRICKS[name], ""
    for number in range(TRIES):
        async with watched() as seen:
            trial = await product_trial(
                cause_task(folder / str(number) / name, TASK, trick.user, LIMIT_SEC), trick.script
            )
        if trial.reward != 0:
            return f"{trial.reward}: {trial.fault}"
        if seen.mb <= MOST_MB and seen.lag_sec <= MOST_LAG_SEC:
            return ""
        lost = f"{seen.mb:.0f} MB, {seen.lag_sec * 1000:.0f} ms"
        async with watched() as plain:  # a pause may be other processes'
            await product_trial(cause_task(folder / str(number) / f"{name}-plain", TASK), "true")
        if seen.mb <= MOST_MB and seen.lag_sec <= 3 * plain.lag_sec:
            return ""
    return lost


async def faults(folder: Path, names: list[str]) -> dict[str, str]:
    """One after the other: the trainer's memory and event loop are measured."""
    first = await product_trial(cause_task(folder / "first", TASK), "true")  # builds, imports
    assert first.reward == 0, first.fault
    found = {name: await wrong(folder, name) for name in names}
    return {name: what for name, what in found.items() if what}


@pytest.mark.parametrize("names", first(1, [BY_DAY, [name for name in TRICKS if name not in BY_DAY]]))
async def test_tricks_earn_0_and_take_nothing_from_the_trainer(tmp_path: Path, names: list[str]) -> None:
    assert await faults(tmp_path, names) == {}


@pytest.mark.nightly
async def test_other_trials_go_on(tmp_path: Path) -> None:
    alone = await product_trial(cause_task(tmp_path / "alone", TASK), "true")
    tricks = [
        asyncio.create_task(product_trial(cause_task(tmp_path / name, TASK, limit=LIMIT_SEC), TRICKS[name].script))
        for name in BESIDE
    ]
    beside = [await product_trial(cause_task(tmp_path / f"beside-{n}", TASK), "true") for n in range(3)]
    assert [one.reward for one in (alone, *beside, *await asyncio.gather(*tricks))] == [0] * (4 + len(BESIDE))
    assert max(one.seconds for one in beside) < 10 + 5 * alone.seconds


async def test_a_terminal_that_the_policy_stops_ends_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "EXEC_MARGIN_SEC", 3)
    monkeypatch.setattr(shell, "BOOT_SEC", 3)

    async def ended(name: str) -> Trajectory:
        typed = [answer(TERMINAL[name], wait=2.0), answer("ls\n", wait=2.0), DONE, DONE]
        host, _ = local_host(typed, trial_timeout_sec=300.0)
        try:
            return await host.run(request(make_task(tmp_path / name), tmp_path / name, name))
        finally:
            await host.close()

    began = time.monotonic()
    trials = dict(zip(TERMINAL, await asyncio.gather(*map(ended, TERMINAL)), strict=True))
    assert {name: (trial.outcome, trial.reward) for name, trial in trials.items()} == dict.fromkeys(
        TERMINAL, (Outcome.COMPLETED, 0.0)
    ), [trial.detail for trial in trials.values()]
    assert time.monotonic() - began < 120, "none takes its 300 s"
