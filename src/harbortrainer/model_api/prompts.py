"""Ids of prompts for all trials of a run: a group's trials share the first one, long ones are encoded in a thread."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.roles import Prompt
from harbortrainer.policy.special_strings import strings_of
from harbortrainer.policy.tools import CallForm, Message, Tool

KEPT = 64  # first prompts; one of 20,000 tokens takes 160 kB
LONG = 12_000  # characters, about 4,000 tokens: encoding them takes 10 ms
Clock = Callable[[], AbstractContextManager[None]]  # counts the CPU time of a block


class Prompts:
    """Encodes with one chat template. One object a run."""

    def __init__(self, template: ChatTemplate, *, needs_tools: bool = True) -> None:
        """Raises UserError when the template renders no tools and they are needed (`tool_format=hermes` helps)."""
        if needs_tools:
            _ = template.call_form
        self.template = template
        self._kept: OrderedDict[str, asyncio.Task[Prompt]] = OrderedDict()

    @property
    def call_form(self) -> CallForm:
        """Raises UserError when the template renders no tools."""
        return self.template.call_form

    async def first(self, digest: str, messages: Sequence[Message], tools: Sequence[Tool], clock: Clock) -> Prompt:
        """Return ids of a whole conversation, kept by its digest. Raises UserError: the template refuses it."""
        if (task := self._kept.get(digest)) is None:
            work = self._encoded(lambda: self.template.opening(messages, tools), messages, tools, clock)
            task = self._kept[digest] = asyncio.create_task(work)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and (task.cancelled() or task.exception()):
                self._kept.pop(digest, None)

    async def after(
        self, answer_T: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool], clock: Clock
    ) -> Prompt:
        """Return ids from the end of a sampled answer to the next answer's header. Raises UserError."""
        return await self._encoded(lambda: self.template.joined(answer_T, messages, tools), messages, (), clock)

    async def _encoded(
        self, work: Callable[[], Prompt], messages: Sequence[Message], tools: Sequence[Tool], clock: Clock
    ) -> Prompt:
        def clocked() -> Prompt:
            with clock():
                return work()

        return await asyncio.to_thread(clocked) if letters(messages, tools) > LONG else clocked()


def letters(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> int:
    """Return characters in messages and tools."""
    return sum(map(len, strings_of([*messages, *tools])))
