"""Turns of removals: one at a time beside starts, more as ended containers pile up, all that are left at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import requests

from harbortrainer.docker.keeping import cleaning
from harbortrainer.docker.keeping.removals import AT_ONCE, Removals, most_ended, removals
from tests.support.fake_engine import FakeEngine, use_engine


class Ended:
    """Containers that wait for their removal; each is removed when it is let go."""

    def __init__(self, turns: Removals) -> None:
        self.removing: list[int] = []
        self.gone: list[int] = []
        self._turns = turns
        self._let_go: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def add(self, *numbers: int, first: bool = False) -> None:
        for number in numbers:
            self._let_go[number] = asyncio.Event()
            self.tasks[number] = asyncio.create_task(self._remove(number, first))

    async def _remove(self, number: int, first: bool) -> None:
        async with self._turns.turn(first=first):
            self.removing.append(number)
            try:
                await self._let_go[number].wait()
            finally:
                self.removing.remove(number)
        self.gone.append(number)

    async def let_go(self, *numbers: int) -> None:
        for number in numbers:
            self._let_go[number].set()
            await self.tasks[number]
        await settle()

    async def all(self) -> None:
        while left := [number for number, task in self.tasks.items() if not task.done()]:
            await self.let_go(*[number for number in self.removing if number in left])


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def made(most: int) -> AsyncIterator[tuple[Removals, Ended]]:
    turns = Removals(most)
    ended = Ended(turns)
    yield turns, ended
    await ended.all()
    assert turns.ended == 0


async def test_as_they_pile_up_more_are_removed_at_once_and_at_the_bound_none_starts() -> None:
    async with made(8) as (turns, ended):
        with turns.starting():
            ended.add(*range(4))
            await settle()
            assert len(ended.removing) == 1
            ended.add(*range(4, 8))
            await settle()
            assert len(ended.removing) == AT_ONCE
        room = asyncio.create_task(turns.room())
        await settle()
        assert not room.done()
        await ended.let_go(0)
        await room


async def test_one_whose_agent_still_runs_comes_first() -> None:
    async with made(100) as (turns, ended):
        with turns.starting():
            ended.add(0, 1, 2)
            await settle()
            ended.add(3, first=True)
            await settle()
            await ended.let_go(0)
            assert ended.removing == [3]


async def test_a_cancelled_removal_gives_its_turn_on() -> None:
    async with made(100) as (turns, ended):
        with turns.starting():
            ended.add(0, 1, 2)
            await settle()
            for number in (1, 0):  # one waits, one has its turn
                ended.tasks[number].cancel()
                await asyncio.wait([ended.tasks[number]])
            await settle()
            assert ended.removing == [2] and turns.ended == 1


async def test_a_start_gives_its_mark_back_when_it_fails() -> None:
    turns = Removals(100)
    with pytest.raises(RuntimeError), turns.starting():
        raise RuntimeError("no such image")
    async with asyncio.timeout(600), turns.turn(), turns.turn():
        pass


async def test_containers_that_the_daemon_refuses_to_remove_hold_no_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for another try outside the turns; all are gone in the end, and the run's end waits for them."""
    refuses, removed = True, list[str]()

    class Refusing(FakeEngine):
        def remove_container(self, name: str, **_: Any) -> None:
            if refuses:
                raise requests.ConnectionError("away")
            removed.append(name)

    use_engine(monkeypatch, Refusing())
    names = [f"c{i}" for i in range(3 * most_ended(64))]
    told: list[str] = []
    with removals().starting():
        for name in names:
            cleaning.in_background(cleaning.remove_after(name, None, lambda name=name: told.append(name)))
        async with asyncio.timeout(600):
            await asyncio.sleep(0)
            await removals().room()
        refuses = False
    await cleaning.drain(patience_sec=60)
    assert sorted(removed) == sorted(told) == sorted(names)
