"""Attacks beside verification and by files that no list names: they earn without protection, and not in the product."""

import asyncio
from pathlib import Path

import pytest

from tests.support.cause_attacks import ATTACKS
from tests.support.cause_tasks import TASKS, cause_task
from tests.support.plain_container import (
    earns_in_plain_container,
    honest_in_plain_container,
    product_outcome,
    product_trial,
)
from tests.support.void_attacks import LIMIT_SEC, MOST_LAG_SEC, MOST_MB, TASK, TRICKS, watched

pytestmark = [pytest.mark.usefixtures("docker_ready"), pytest.mark.nightly]
AT_ONCE = 3
PAID_TODAY: set[str] = set()
# These are ungraded, or disturb the trainer, today.
VOID_TODAY = {
    "log-is-sparse",
    "log-is-sparse-as-dev",
    "nested-3000-times",
    "nested-3000-times-as-dev",
    "number-of-5000-digits",
    "settings-are-sparse",
    "work-is-a-pipe",
    "work-is-a-pipe-as-dev",
}
TRIES = 3  # a race may be lost, and a pause be another process's, on a busy machine


async def test_tasks_pay_their_solution_only() -> None:
    few = asyncio.Semaphore(AT_ONCE)

    async def rewards(name: str) -> tuple[float | None, float | None]:
        async with few:
            return await asyncio.to_thread(honest_in_plain_container, name)

    found = dict(zip(TASKS, await asyncio.gather(*map(rewards, TASKS)), strict=True))
    assert found == dict.fromkeys(TASKS, (0.0, 1.0))


async def test_attacks_earn_in_a_plain_container() -> None:
    few = asyncio.Semaphore(AT_ONCE)

    async def earns(name: str) -> bool:
        async with few:
            for _ in range(TRIES):
                if await asyncio.to_thread(earns_in_plain_container, ATTACKS[name]):
                    return True
        return False

    found = dict(zip(ATTACKS, await asyncio.gather(*map(earns, ATTACKS)), strict=True))
    assert [name for name, earned in found.items() if not earned] == []


async def test_the_product_pays_no_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those by the work's own content, which may earn."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    few = asyncio.Semaphore(AT_ONCE)
    judged = [name for name, attack in ATTACKS.items() if not attack.by_work]

    async def paid(name: str) -> bool:
        async with few:
            reward = (await product_outcome(ATTACKS[name])).reward
        return bool(reward and reward > 0)

    found = dict(zip(judged, await asyncio.gather(*map(paid, judged)), strict=True))
    assert {name for name, was in found.items() if was} == PAID_TODAY


async def wrong(folder: Path, name: str) -> str:
    """What a trick does to its grade or to the trainer; "" = nothing."""
    trick, lost = TRICKS[name], ""
    for number in range(TRIES):
        task = cause_task(folder / str(number) / name, TASK, trick.user, LIMIT_SEC)
        async with watched() as seen:
            trial = await product_trial(task, trick.script)
        if trial.reward != 0:
            return f"{trial.reward}: {trial.fault}"
        if seen.mb <= MOST_MB and seen.lag_sec <= MOST_LAG_SEC:
            return ""
        lost = f"{seen.mb:.0f} MB, {seen.lag_sec * 1000:.0f} ms"
    return lost


async def test_tricks_do_not_turn_a_reward_of_0_into_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other: the trainer's memory and event loop are measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = await product_trial(cause_task(tmp_path / "first", TASK), "true")  # builds, imports
    assert first.reward == 0, first.fault
    found = {name: await wrong(tmp_path, name) for name in TRICKS}
    faults = {name: what for name, what in found.items() if what}
    assert faults.keys() == VOID_TODAY, faults
