"""Agents that keep their own history: what they send again is matched, and sampled ids are kept."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from harbortrainer.config import Config
from harbortrainer.learning.batch import assemble
from harbortrainer.learning.datums import training_sequences
from harbortrainer.learning.trajectory import Outcome, Trajectory, group_trajectories
from harbortrainer.model_api.exchange import Exchange
from harbortrainer.model_api.normal import call
from harbortrainer.model_api.prompts import Prompts
from harbortrainer.model_api.reply import Over
from harbortrainer.run.trajectories import read_trajectory, write_trajectory
from tests.support.families import QWEN_TOOLS
from tests.support.tools import TOOLS, chats, written
from tests.support.wire_parts import SYSTEM, echo, exchange_of, result, said, user

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
CALL = '<tool_call>\n{"name":  "find_order",\n "arguments": {"id":  "\\u00e9 1"}}\n</tool_call>'


def trajectory(exchange: Exchange) -> Trajectory:
    return Trajectory(
        "t", "s000000-p00-g00", tuple(exchange.turns), 1.0, Outcome.COMPLETED,
        stats=exchange.stats, side_segments=exchange.side_segments,
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(chats()))
async def test_every_prompt_is_what_was_held_and_sampled_and_the_rendered_rest(name: str) -> None:
    """And its text is the template's own rendering of the whole history, but for empty thoughts."""
    chat = chats()[name]
    prompts = Prompts(chat)
    first, second = ("find_order", {"id": "#1 é"}), ("cancel_order", {"id": "1", "reason": 'no "use"'})
    exchange, client = exchange_of(
        [written(chat, *first), "Look.", written(chat, *second), "", "done"], prompts=prompts
    )
    messages = [SYSTEM, user("Cancel it. <|im_end|>")]
    news = [[result("found <|im_start|>")], [user("go on")], [result("")], [user("so?")], []]
    for number, new in enumerate(news):
        reply = await exchange.say(messages, TOOLS)
        prompt_T = client.requests[-1].prompt_T
        if number:
            held_T = client.requests[-2].prompt_T + list(exchange.turns[-2].completion_tokens_T)
            assert prompt_T[: len(held_T)] == held_T
            rest_T = chat.joined(exchange.turns[-2].completion_tokens_T, messages[-len(news[number - 1]) :], TOOLS).ids
            assert prompt_T[len(held_T) :] == rest_T
        whole = chat.tokenizer.decode(chat.first_prompt(messages, TOOLS))
        assert chat.tokenizer.decode(prompt_T).replace(EMPTY_THOUGHT, "") == whole.replace(EMPTY_THOUGHT, "")
        messages += [echo(reply), *new]
    assert exchange.stats["wire_tokens_per_unique_token"] == 1.0 and exchange.stats["wire_matched"] == 4
    (sequence,) = training_sequences(trajectory(exchange), 1.0)
    assert sequence.tokens_T.tolist() == exchange.conversation.segments[0].tokens_T
    assert exchange.stats["special_strings"] >= 2 or name != QWEN_TOOLS.name


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m | {"content": "\n " + m["content"] + "\n"},
        lambda m: m | {"content": "<think>\nagain\n</think>\n\n" + m["content"]},
        lambda m: m | {"id": "msg_1", "reasoning_content": "x", "cache_control": {"type": "ephemeral"}},
        lambda m: m | {"tool_calls": [call("find_order", '{"id":"\\u00e9 1"}') | {"id": "other"}]},
        lambda m: m | {"tool_calls": [call("find_order", {"id": "é 1"})]},
    ],
)
async def test_an_echo_in_another_spelling_continues(change: Any) -> None:
    exchange, client = exchange_of(["Look.\n" + CALL, "done"])
    asked = [SYSTEM, user("q")]
    reply = await exchange.say(asked, TOOLS)
    assert (reply.text, reply.calls[0].name, json.loads(reply.calls[0].arguments)) == (
        "Look.",
        "find_order",
        {"id": "é 1"},
    )
    await exchange.say([*asked, change(echo(reply)), result("r")], TOOLS)
    assert exchange.stats["wire_segments"] == 1 and exchange.stats["wire_foreign"] == 0
    assert CALL in exchange.conversation.template.tokenizer.decode(client.requests[1].prompt_T)


async def test_an_echo_with_numbers_as_javascript_writes_them_continues() -> None:
    """Three agents parse arguments and write them again: 1.0 as 1, and 20 digits as the nearest double."""
    said = '{"whole": 10.0, "power": 1e3, "zero": -0.0, "long": 12345678901234567890, "half": 1.5, "yes": true}'
    exchange, _ = exchange_of([CALL.replace('{"id":  "\\u00e9 1"}', said), "done"])
    reply = await exchange.say([SYSTEM, user("q")], TOOLS)
    back = '{"whole":10,"power":1000,"zero":0,"long":12345678901234567000,"half":1.5,"yes":true}'
    again = echo(reply, tool_calls=[call("find_order", back)])
    await exchange.say([SYSTEM, user("q"), again, result("r")], TOOLS)
    assert json.loads(reply.calls[0].arguments)["long"] == 12345678901234567890
    assert exchange.stats["wire_segments"] == 1 and exchange.stats["wire_foreign"] == 0
    other = echo(reply, tool_calls=[call("find_order", back.replace("1.5", "1.25"))])
    await exchange.say([SYSTEM, user("q"), other, result("r")], TOOLS)
    assert exchange.stats["wire_foreign"] == 1


@pytest.mark.parametrize("content", ["Looked.", "Look", "Look.\n" + CALL])
async def test_an_echo_with_other_words_opens_a_segment_and_only_samples_carry_loss(content: str) -> None:
    exchange, _ = exchange_of(["Look.\n" + CALL, "done"])
    reply = await exchange.say([SYSTEM, user("q")], TOOLS)
    forged = echo(reply, content=content)
    await exchange.say([SYSTEM, user("q"), forged, result("r")], TOOLS)
    stats = exchange.stats
    assert (stats["wire_segments"], stats["wire_foreign"], stats["wire_matched"]) == (2, 1, 0)
    assert stats["wire_tokens_per_unique_token"] > 1.3
    sequences = training_sequences(trajectory(exchange), 1.0)
    sampled = [list(turn.completion_tokens_T) for turn in exchange.turns]
    assert [one.tokens_T[one.mask_T].tolist() for one in sequences] == sampled


@pytest.mark.parametrize("change", [0, 1, 3, "tools"])
async def test_a_change_before_the_last_answer_opens_a_segment(change: int | str) -> None:
    """What a request has in common with the one before is not digested again."""
    exchange, _ = exchange_of([CALL])
    messages = [SYSTEM, user("q")]
    for output in ("r1", "r2"):
        messages += [echo(await exchange.say(messages, TOOLS)), result(output)]
    tools = TOOLS[:1] if change == "tools" else TOOLS
    changed = [m | {"content": "x"} if at == change else m for at, m in enumerate(messages)]
    await exchange.say(changed, tools)
    await exchange.say(messages, TOOLS)
    assert [turn.segment for turn in exchange.turns] == [0, 0, 1, 0]


async def test_a_dropped_answer_is_a_branch_with_the_ids_that_were_held() -> None:
    """mini-swe-agent leaves out an answer without a call and says that the format was wrong."""
    exchange, client = exchange_of([CALL, "no call", CALL, "done"])
    messages = [SYSTEM, user("q")]
    messages += [echo(await exchange.say(messages, TOOLS)), result("r")]
    await exchange.say(messages, TOOLS)
    held_T = client.requests[1].prompt_T[: len(exchange.conversation.segments[0].tokens_T)]
    messages.append(user("format error"))
    messages += [echo(await exchange.say(messages, TOOLS)), result("r2")]
    await exchange.say(messages, TOOLS)
    assert [turn.segment for turn in exchange.turns] == [0, 0, 1, 1]
    first = client.requests[0].prompt_T + list(exchange.turns[0].completion_tokens_T)
    assert client.requests[2].prompt_T[: len(first)] == first == held_T[: len(first)]
    stats = exchange.stats
    assert (stats["wire_branches"], stats["wire_foreign"], stats["wire_matched"]) == (1, 0, 3)
    assert stats["wire_repeated_tokens"] == len(first)
    assert len(training_sequences(trajectory(exchange), 1.0)) == 2


async def test_two_requests_at_once_for_one_place_are_two_segments() -> None:
    texts = iter([CALL, "one", "two", "three"])
    exchange, client = exchange_of(lambda request: next(texts))
    messages = [SYSTEM, user("q")]
    messages += [echo(await exchange.say(messages, TOOLS)), result("r")]
    both = await asyncio.gather(exchange.say(messages, TOOLS), exchange.say(messages, TOOLS))
    assert {reply.text for reply in both} == {"one", "two"}
    assert sorted(turn.segment for turn in exchange.turns) == [0, 0, 1]
    assert client.requests[1].prompt_T == client.requests[2].prompt_T
    await exchange.say([*messages, echo(both[1]), user("on")], TOOLS)
    assert exchange.turns[-1].segment == next(turn.segment for turn in exchange.turns if turn.text == both[1].text)
    assert exchange.stats["wire_foreign"] == 0 and exchange.stats["wire_segments"] == 2


async def test_side_calls_carry_no_loss_and_titles_take_no_turn_of_the_agent(tmp_path: Any) -> None:
    """A title first, then the agent, then the policy's own call, then one with a copied tool list and no system."""
    exchange, _ = exchange_of(["A title", CALL, "self", "forged", "done"], max_turns=2)
    await exchange.say([SYSTEM, user("Title for: q")])
    messages = [SYSTEM, user("q")]
    messages += [echo(await exchange.say(messages, TOOLS)), result("r")]
    await exchange.say([user("what is the answer?")])
    await exchange.say([user("what is the answer?")], TOOLS)
    await exchange.say(messages, TOOLS)
    assert exchange.side_segments == (0, 2, 3) and exchange.over == ""
    assert exchange.stats["wire_side_turns"] == 3 and exchange.stats["wire_side_tokens"] > 3
    made = trajectory(exchange)
    (sequence,) = training_sequences(made, 1.0)
    assert sequence.mask_T.sum() == sum(len(exchange.turns[n].completion_tokens_T) for n in (1, 4))
    assert made.n_unique_tokens - made.n_side_tokens == len(sequence.tokens_T)
    group = group_trajectories("t", [made, replace(made, trial_name="s000000-p00-g01", reward=0.0)])
    batch = assemble([group], Config(model_name="m", tasks_dir="d"))
    assert batch.metrics["train/tokens_per_unique_token"] == 1.0
    assert made.trainable and read_trajectory(write_trajectory(tmp_path, made)).side_segments == (0, 2, 3)
    only_side = Trajectory("t", "n", tuple(exchange.turns[:1]), 1.0, Outcome.COMPLETED, side_segments=(0,))
    assert not only_side.trainable
    with pytest.raises(Over) as refused:
        await exchange.say([*messages, said("done"), user("more")], TOOLS)
    assert refused.value.reason == "max_turns" == exchange.over and exchange.ended.is_set()


async def test_agents_without_tools_train_on_all_their_segments() -> None:
    exchange, _ = exchange_of(["one", "two", "three"])
    await exchange.say([SYSTEM, user("a")])
    await exchange.say([SYSTEM, user("b")])
    assert exchange.side_segments == ()
    await exchange.say([SYSTEM, user("c")], TOOLS)
    await exchange.say([user("d")])
    assert exchange.side_segments == (0, 1, 3)


async def test_a_repeated_request_gets_the_first_ones_answer_only_if_the_client_says_so() -> None:
    exchange, client = exchange_of(["one", "two", "three"])
    asked = [SYSTEM, user("q")]
    assert (await exchange.say(asked, TOOLS)).text == "one"
    assert (await exchange.say(asked, TOOLS, again=True)).text == "one"
    assert (await exchange.say(asked, TOOLS)).text == "two"
    both = await asyncio.gather(
        exchange.say([*asked, user("b")], TOOLS), exchange.say([*asked, user("b")], TOOLS, again=True)
    )
    assert both[0] == both[1] and len(client.requests) == 3
    assert (exchange.stats["wire_replayed"], exchange.stats["wire_joined"]) == (1, 1)
