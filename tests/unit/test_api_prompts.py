"""First prompts of agents: rendered once a group, long ones in a thread; messages arranged for a template."""

import asyncio
import random
import threading
from typing import Any

import pytest

from harbortrainer.model_api.normal import arranged, digests
from harbortrainer.model_api.prompts import LONG, Prompts
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.roles import Prompt
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.tools import TOOLS
from tests.support.wire_parts import SYSTEM, exchange_of, result, user


async def test_a_group_renders_its_first_prompt_once_and_long_ones_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    class Watched(ChatTemplate):
        def opening(self, messages: Any, tools: Any = ()) -> Prompt:
            threads.append(threading.current_thread())
            return super().opening(messages, tools)

    prompts = Prompts(Watched(chat_of(QWEN_TOOLS).tokenizer))
    words = random.Random(0)
    long = [SYSTEM, user(" ".join(str(words.random()) for _ in range(LONG // 10)))]
    for asked in ([SYSTEM, user("q")], long, long):
        group = [exchange_of(["x"], prompts=prompts)[0] for _ in range(2)]
        await asyncio.gather(*(exchange.say(asked, TOOLS) for exchange in group))
        assert all(exchange.conversation.cpu_seconds > 0 for exchange in group)
    main = threading.main_thread()
    assert [thread is main for thread in threads] == [True, False]


async def test_a_first_prompt_that_failed_is_rendered_again_for_the_next_trial() -> None:
    """No thread may have been left: the next trial of the task must not get the same error for ever."""
    fails = iter([True, False])

    class Once(ChatTemplate):
        def opening(self, messages: Any, tools: Any = ()) -> Prompt:
            if next(fails):
                raise RuntimeError("can't start new thread")
            return super().opening(messages, tools)

    prompts = Prompts(Once(chat_of(QWEN_TOOLS).tokenizer))
    first, second = (exchange_of(["x"], prompts=prompts)[0] for _ in range(2))
    with pytest.raises(RuntimeError, match="thread"):
        await first.say([SYSTEM, user("q")], TOOLS)
    assert (await second.say([SYSTEM, user("q")], TOOLS)).text == "x"


def test_instructions_in_front_are_one_system_message_and_later_ones_the_users() -> None:
    given = [
        {"role": role, "content": role[0] + str(n)} for n, role in enumerate(["system", "system", "user", "system"])
    ]
    assert arranged(given) == [{"role": "system", "content": "s0\n\ns1"}, user("u2"), user("s3")]
    assert arranged([user("a")]) == [user("a")]


def test_what_the_environment_says_is_matched_to_the_letter() -> None:
    one, other = digests([user("a"), result("b ")], TOOLS), digests([user("a"), result("b")], TOOLS)
    assert one[:2] == other[:2] and one[2] != other[2]
    assert digests([user("a")], TOOLS)[0] != digests([user("a")], TOOLS[:1])[0]
    assert digests([user("\ud83d")], ())[1] != digests([user("\ud83e")], ())[1]
