"""Conversations of many clients: each is continued with the ids that were sampled for it, and none disturbs another."""

from typing import Any

import pytest

from harbortrainer.errors import UserError
from harbortrainer.model_api.exchange import MATCHED
from harbortrainer.model_api.reply import Over, Unavailable
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.serve.exchanges import Exchanges
from tests.support.fakes import QWEN3, ScriptedClient, chat_template


def desk(answers: Any, context_limit: int = 400, kept: int = 9) -> tuple[Exchanges, ScriptedClient]:
    template = chat_template(QWEN3)
    client, sampler = ScriptedClient(answers, template), PolicySampler(attempts=1)
    sampler.publish(client, 0)

    def new() -> Conversation:
        return Conversation(sampler, template, max_tokens=32, temperature=0.0, context_limit=context_limit)

    return Exchanges(new, template, at_once=8, kept=kept), client


def asks(*texts: str) -> list[dict[str, str]]:
    """User and assistant by turns."""
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


async def test_each_conversation_goes_on_with_its_own_ids() -> None:
    served, client = desk(["one", "two", "three", "four"])
    assert (await served.say(asks("a"))).text == "one"
    assert (await served.say(asks("b"))).text == "two"
    assert (await served.say(asks("a", "one", "more"))).text == "three"
    first, third = client.requests[0].prompt_T, client.requests[2].prompt_T
    assert third[: len(first)] == first
    (_, exchange), *_ = [one for one in served._open.items() if len(one[1].turns) == 2]
    assert exchange.stats[MATCHED] == 1


async def test_a_forgotten_conversation_is_read_as_text() -> None:
    served, client = desk(["one", "two", "three"], kept=1)
    await served.say(asks("a"))
    await served.say(asks("b"))
    assert len(served._open) == 1
    assert (await served.say(asks("a", "one", "more"))).text == "three"
    assert len(client.requests) == 3


async def test_a_fault_of_sampling_ends_no_conversation() -> None:
    answers = iter(["one", None, "two"])

    def answer(_: Any) -> str:
        if (text := next(answers)) is None:
            raise ConnectionError("away")
        return text

    served, _ = desk(answer)
    await served.say(asks("a"))
    with pytest.raises(Unavailable, match="gives no answer now"):
        await served.say(asks("a", "one", "more"))
    assert (await served.say(asks("a", "one", "more"))).text == "two"


async def test_a_full_context_is_refused_and_ends_nothing() -> None:
    served, _ = desk(["one", "two"], context_limit=60)
    with pytest.raises(Over) as refused:
        await served.say(asks("long " * 200))
    assert refused.value.reason == "context_length"
    assert (await served.say(asks("a"))).text == "one"


async def test_a_template_without_tools_answers_requests_without() -> None:
    served, _ = desk(["one"])
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
    with pytest.raises(UserError, match="tool_format=hermes"):
        await served.say(asks("a"), [tool])
    assert (await served.say(asks("a"))).text == "one"
