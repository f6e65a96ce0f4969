"""Attacks beside verification and by files that no list names: they earn without protection, and not in the product."""

import asyncio
from pathlib import Path

import pytest

from tests.support.cause_attacks import ATTACKS
from tests.support.cause_tasks import TASKS
from tests.support.plain_container import (
    earns_in_plain_container,
    honest_in_plain_container,
    product_outcome,
)

pytestmark = [pytest.mark.usefixtures("docker_ready"), pytest.mark.nightly]
AT_ONCE = 3
PAID_TODAY: set[str] = set()
TRIES = 3  # a race may be lost on a busy machine


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
