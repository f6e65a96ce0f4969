"""What ends a trial of an agent that keeps its own history, and what ends only one of its requests."""

import asyncio
from typing import Any

import pytest

from harbortrainer.model_api.exchange import AT_ONCE, SIDE_TURNS
from harbortrainer.model_api.reply import Busy, Over
from harbortrainer.policy.sampler import SamplingError
from tests.support.fakes import let_others_act
from tests.support.tools import TOOLS, tool
from tests.support.wire_parts import SYSTEM, echo, exchange_of, said, user


async def test_side_calls_have_a_limit_of_their_own_that_ends_nothing() -> None:
    exchange, _ = exchange_of(["x"])
    await exchange.say([SYSTEM, user("q")], TOOLS)
    for number in range(SIDE_TURNS):
        await exchange.say([user(str(number))])
    with pytest.raises(Over, match="beside the agent's"):
        await exchange.say([user("more")])
    assert exchange.over == "" and not exchange.ended.is_set()
    await exchange.say([SYSTEM, user("q"), said("x"), user("on")], TOOLS)


async def test_no_more_than_four_samples_of_a_trial_at_once() -> None:
    exchange, client = exchange_of(lambda request: None)
    asked = [asyncio.create_task(exchange.say([SYSTEM, user(str(n))], TOOLS)) for n in range(AT_ONCE)]
    await let_others_act()
    with pytest.raises(Busy):
        await exchange.say([SYSTEM, user("more")], TOOLS)
    await exchange.close()
    over = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in over] == [Over] * AT_ONCE and exchange.over == "closed"
    assert len(client.requests) == AT_ONCE and not exchange.turns


async def test_a_full_context_ends_the_trial_unless_the_agent_may_compact() -> None:
    for may_compact in (False, True):
        exchange, client = exchange_of(["x" * 30], context_limit=2000, may_compact=may_compact)
        asked = [SYSTEM, user("q")]
        asked += [echo(await exchange.say(asked, TOOLS)), user("word " * 2000)]
        with pytest.raises(Over, match="context_limit is 2000") as refused:
            await exchange.say(asked, TOOLS)
        assert refused.value.reason == "context_length" and len(client.requests) == 1
        assert exchange.full
        assert (exchange.over, exchange.ended.is_set()) == (("", False) if may_compact else ("context_length", True))
        if may_compact:
            await exchange.say([SYSTEM, user("a summary")], TOOLS)
            assert not exchange.full
            await exchange.say([*asked[:3], user("short")], TOOLS)  # the refused request did not use up its place
            assert [turn.segment for turn in exchange.turns] == [0, 1, 0] and exchange.stats["wire_foreign"] == 0


async def test_a_side_calls_full_context_ends_nothing() -> None:
    exchange, _ = exchange_of(["x"], context_limit=2000)
    await exchange.say([SYSTEM, user("q")], TOOLS)
    with pytest.raises(Over):
        await exchange.say([user("word " * 3000)])
    assert not exchange.full
    large = tool("f", about="word " * 300_000)
    for messages, tools in (([user("word " * 300_000)], ()), ([user("q")], [large])):
        with pytest.raises(Over, match="characters"):  # refused without being encoded
            await exchange.say(messages, tools)
    for number in range(SIDE_TURNS - 3):
        await exchange.say([user(str(number))])
    with pytest.raises(Over, match="beside the agent's"):  # the refused ones count: they took work
        await exchange.say([user("one more")])
    assert exchange.over == ""


async def test_another_step_has_its_own_turns_but_not_another_deadline_or_server() -> None:
    exchange, _ = exchange_of(["one"], max_turns=1)
    exchange.deadline = asyncio.get_running_loop().time() + 1000
    await exchange.say([user("q")])
    with pytest.raises(Over):
        await exchange.say([user("q"), user("more")])
    await exchange.close()
    assert exchange.over == "max_turns"
    exchange.reopen()
    assert not exchange.over and not exchange.ended.is_set()
    exchange.deadline = asyncio.get_running_loop().time() - 1
    await exchange.close()
    exchange.reopen()
    await asyncio.wait_for(exchange.ended.wait(), 600)
    assert exchange.over == "timeout"
    exchange.reopen()
    exchange.deadline = None
    exchange.reopen()
    exchange.fault = ConnectionError("gone")
    exchange.end("fault")
    exchange.reopen()
    assert exchange.over == "fault" and exchange.ended.is_set()


async def test_another_step_may_ask_what_the_step_before_did_not_hear() -> None:
    hangs = iter([True, False])
    exchange, _ = exchange_of(lambda request: None if next(hangs) else "two")
    left = asyncio.create_task(exchange.say([user("q")]))
    await let_others_act()
    left.cancel()
    await asyncio.wait({left})
    await exchange.close()
    exchange.reopen()
    assert (await exchange.say([user("q")])).text == "two"


async def test_the_deadline_ends_waiting_and_later_requests() -> None:
    exchange, _ = exchange_of(lambda request: None)
    waiting = asyncio.create_task(exchange.say([SYSTEM, user("q")], TOOLS))
    await let_others_act()
    exchange.deadline = asyncio.get_running_loop().time() + 0.01
    with pytest.raises(Over) as over:
        await waiting
    assert over.value.reason == "timeout" == exchange.over and exchange.ended.is_set()
    with pytest.raises(Over, match="the trial is over: timeout"):
        await exchange.say([SYSTEM, user("q")], TOOLS)
    exchange.deadline = None


async def test_a_fault_of_the_sampler_ends_the_trial_and_is_kept() -> None:
    def fail(request: Any) -> Any:
        raise ValueError("gone")

    exchange, _ = exchange_of(fail)
    with pytest.raises(SamplingError):
        await exchange.say([SYSTEM, user("q")], TOOLS)
    assert isinstance(exchange.fault, SamplingError) and exchange.over == "fault" and exchange.ended.is_set()
    with pytest.raises(Over):
        await exchange.say([SYSTEM, user("q")], TOOLS)


async def test_max_tokens_is_the_least_of_asked_configured_and_room() -> None:
    exchange, client = exchange_of(["a" * 300], max_tokens=100)
    for number, (asked, got) in enumerate([(None, 100), (40, 40), (32_000, 100)]):
        reply = await exchange.say([SYSTEM, user(str(number))], TOOLS, asked_max_tokens=asked)
        assert client.requests[-1].max_tokens == got == reply.sampled_tokens and reply.truncated


async def test_an_agents_first_prompt_may_take_its_share_of_the_context_and_later_ones_more() -> None:
    exchange, client = exchange_of(["A title", "one", "two"], context_limit=2000, first_share=0.5)
    await exchange.say([user("Title for: q")])
    with pytest.raises(Over, match=r"the prompt has 1\d{3} tokens, more than 50% of context_limit=2000"):
        await exchange.say([SYSTEM, user("word " * 200)], TOOLS)
    assert exchange.full and exchange.over == "context_length" and len(client.requests) == 1
    exchange, client = exchange_of(["one", "two"], context_limit=2000, first_share=0.5)
    first = await exchange.say([SYSTEM, user("q")], TOOLS)
    await exchange.say([SYSTEM, user("q"), echo(first), user("word " * 200)], TOOLS)
    assert len(client.requests) == 2
