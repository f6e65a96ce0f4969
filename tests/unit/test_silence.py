"""Which part of a trial's time the server is to blame for, in virtual time."""

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.policy.clock import LOOK_SEC, Clock
from harbortrainer.policy.conversation import Conversation, user
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.policy.silence import Silences
from tests.support.scripted_agent import Rig, answer
from tests.support.unsteady_server import Times, UnsteadyServer
from tests.support.virtual_time import in_virtual_time
from tests.support.wire_parts import exchange_of

LIMIT, ANSWER = 90.0, 5.0


def turns(folder: Path, **stops: Times) -> int:
    """How many turns an agent has that acts until its time is over."""

    async def run() -> int:
        rig = Rig(folder, [answer("ls\n")], max_turns=1000, context_limit=10**6)
        server = UnsteadyServer([answer("ls\n")], ANSWER, **stops)
        silences = Silences()
        rig.sampler = PolicySampler(attempts=1, silences=silences)
        rig.sampler.publish(server, 0)
        rig.llm._sampler = rig.sampler
        rig.llm.deadline = asyncio.get_running_loop().time() + LIMIT
        async with server.looked_at(silences):
            assert await rig.run() == "timeout"
        assert rig.llm.fault is None
        return len(rig.llm.turns)

    folder.mkdir()
    return in_virtual_time(run())


def outages(seed: int) -> Times:
    """Two, and the first answers after the first one enter what is usual."""
    chance = random.Random(seed)
    first, between = chance.uniform(0, 60), chance.uniform(5, 60)
    lengths = [chance.uniform(60, 240) for _ in range(2)]
    second = first + lengths[0] + between
    return [(first, first + lengths[0]), (second, second + lengths[1])]


def test_two_outages_take_no_turn_from_an_agent(tmp_path: Path) -> None:
    """The second one was taken for slowness: answers that the first one delayed had moved what is usual."""
    usual = turns(tmp_path / "usual")
    assert usual == pytest.approx(LIMIT / ANSWER, abs=1)
    found = [turns(tmp_path / str(seed), frozen=outages(seed)) for seed in range(3)]
    found += [turns(tmp_path / "seen", frozen=[(10, 82), (110, 215)])]
    assert all(usual <= one <= usual + 2 for one in found), "two looks decide later than its time was over"


def test_an_outage_from_the_first_request_on_is_no_trial_without_a_turn(tmp_path: Path) -> None:
    assert turns(tmp_path / "a", frozen=[(0, 105), (133, 238)]) >= turns(tmp_path / "usual")


def test_time_that_the_server_compiles_is_not_the_agents(tmp_path: Path) -> None:
    usual = turns(tmp_path / "usual")
    assert usual <= turns(tmp_path / "a", compiles=[(1, 40), (50, 53), (60, 99), (130, 131.5)]) <= usual + 2


def test_what_computes_answers_may_hang_twice_behind_an_api_that_works(tmp_path: Path) -> None:
    usual = turns(tmp_path / "usual")
    found = turns(tmp_path / "a", hangs=[(10, 115), (143, 248)])
    assert found >= usual - 1


def test_an_agent_with_a_client_of_its_own_has_the_same_clock() -> None:
    async def run() -> float:
        exchange, _ = exchange_of(["yes"])
        server = UnsteadyServer(["yes"], ANSWER, frozen=[(10, 200)])
        silences = Silences()
        sampler = PolicySampler(attempts=1, silences=silences)
        sampler.publish(server, 0)
        exchange.conversation._sampler = sampler
        exchange.deadline = asyncio.get_running_loop().time() + LIMIT
        async with server.looked_at(silences):
            history = [user("q")]
            while not exchange.over:
                said = asyncio.create_task(exchange.say(history))
                await asyncio.wait({said})
                if not said.cancelled() and said.exception() is None:
                    history = [*history, {"role": "assistant", "content": said.result().text}, user("q")]
        assert exchange.over == "timeout"
        return server.now

    assert LIMIT + 190 <= in_virtual_time(run()) <= LIMIT + 194


def test_slow_answers_become_usual() -> None:
    """A server that takes 100 s for every answer is not silent; the first ones may look so."""

    async def run() -> list[bool]:
        sampler, lost = PolicySampler(attempts=1), []
        sampler.publish(UnsteadyServer([answer("ls\n")], 100.0), 0)
        talk = Conversation(
            sampler, UnsteadyServer([], 1.0).template, max_tokens=64, temperature=1.0, context_limit=99999
        )
        for _ in range(12):
            before = talk.lost()
            await talk.ask([user("q")])
            lost.append(talk.lost() > before)
        return lost

    assert in_virtual_time(run()) == [True] * 8 + [False] * 4


@pytest.mark.parametrize(("begin", "silence"), [(10, 0), (45, 0), (80, 0), (40, 60), (40, 30)])
def test_time_in_which_the_trainer_was_stopped_is_not_the_agents(begin: float, silence: float) -> None:
    """Not in a command, and once only where the server's silence counts some of it already."""

    async def run() -> float:
        loop: Any = asyncio.get_running_loop()
        counted = [0.0]

        async def stop() -> None:
            await asyncio.sleep(begin)
            loop._clock.now += 60
            counted.append(silence)

        stopping = asyncio.create_task(stop())
        with contextlib.suppress(TimeoutError):
            async with Clock.of(LIMIT, lambda: sum(counted)):
                await stopping
                await asyncio.Event().wait()
        return loop.time()

    assert in_virtual_time(run()) == pytest.approx(LIMIT + 60, abs=LOOK_SEC)


def of(work: Coroutine[Any, Any, Any]) -> Any:
    return in_virtual_time(work)


def test_a_server_that_nobody_looks_at_is_silent_after_a_minute() -> None:
    async def run() -> None:
        silences = Silences()
        silences.asked()
        await asyncio.sleep(59)
        assert (silences.silent(0.0), silences.silent_now) == (0, 0)
        await asyncio.sleep(11)
        assert (silences.silent(0.0), silences.silent_now, silences.lost(20.0)) == (70, 70, 50)
        silences.answered()
        silences.ended()
        await asyncio.sleep(500)
        assert (silences.silent(0.0), silences.silent_now, silences.lost(60.0)) == (70, 0, 10)

    of(run())


def test_requests_that_all_fail_leave_what_they_waited_for() -> None:
    async def run() -> None:
        silences = Silences()
        silences.asked()
        await asyncio.sleep(100)
        silences.ended()
        assert silences.silent(50.0) == 50

    of(run())


def test_a_server_that_was_started_again_counts_its_compilations_from_its_start() -> None:
    async def run() -> None:
        silences = Silences()
        silences.looked({"compile_seconds": 300.0})
        await asyncio.sleep(2)
        silences.looked({"compile_seconds": 300.5})
        await asyncio.sleep(4)
        silences.looked({"compile_seconds": 1.0, "compiling_seconds": 0.5})
        assert silences.lost(0.0) == pytest.approx(2.0)
        await asyncio.sleep(1)
        assert silences.lost(0.0) == pytest.approx(3.0), "it compiles still, for all that is known"
        silences.looked({})
        assert silences.lost(0.0) == pytest.approx(2.0)

    of(run())
