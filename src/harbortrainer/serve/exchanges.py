"""The conversations of all clients: each opening has an Exchange, in which later requests find what was sampled."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from harbortrainer.model_api.exchange import Exchange
from harbortrainer.model_api.normal import digests
from harbortrainer.model_api.prompts import Prompts
from harbortrainer.model_api.reply import Reply, Unavailable
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.sampler import SamplingError
from harbortrainer.policy.tools import Message, Tool

KEPT = 256  # openings; a conversation whose opening is forgotten is read as text
MOST_TURNS = 2048  # of one opening, after which it is forgotten


class Exchanges:
    """What `model_api/service.py` asks of an Exchange, for many conversations at once."""

    def __init__(self, new: Callable[[], Conversation], template: ChatTemplate, at_once: int, kept: int = KEPT) -> None:
        """`new`: an empty conversation; `at_once`: answers sampled at the same time."""
        self._new, self._prompts, self._at_once, self._kept = new, Prompts(template, needs_tools=False), at_once, kept
        self._open: OrderedDict[str, Exchange] = OrderedDict()
        self.conversation = new()  # its limits and clock

    async def say(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        asked_max_tokens: int | None = None,
        again: bool = False,
    ) -> Reply:
        """Return the policy's answer. Raises as Exchange.say does, and Unavailable for SamplingError."""
        opening, exchange = self._exchange(messages, tools)
        try:
            reply = await exchange.say(messages, tools, asked_max_tokens=asked_max_tokens, again=again)
        except (SamplingError, RuntimeError) as error:  # RuntimeError: no weights are published
            self._open.pop(opening, None)
            raise Unavailable(f"the policy gives no answer now: {error}") from error
        if len(exchange.turns) >= MOST_TURNS:
            self._open.pop(opening, None)
        return reply

    async def count(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> int:
        """Return tokens of a prompt."""
        return await self._exchange(messages, tools)[1].count(messages, tools)

    def refused(self, status: int) -> None: ...

    async def close(self) -> None:
        """End what is being sampled."""
        await asyncio.gather(*(exchange.close() for exchange in self._open.values()))

    def _exchange(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[str, Exchange]:
        """That of the messages before the first answer."""
        first = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        opening = digests(messages[:first], tools)[-1]
        exchange = self._open.get(opening)
        if exchange is None or exchange.over:
            limits = {"side_turns": 0, "may_compact": True, "at_once": self._at_once}
            exchange = self._open[opening] = Exchange(self._new(), self._prompts, **limits)
        self._open.move_to_end(opening)
        while len(self._open) > self._kept:
            self._open.popitem(last=False)
        return opening, exchange
