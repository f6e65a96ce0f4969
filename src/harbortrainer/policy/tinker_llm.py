"""Harbor's LLM interface over a conversation with the policy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from harbor.llms.base import BaseLLM, ContextLengthExceededError, LLMResponse
from harbor.models.metric import UsageInfo

from harbortrainer.policy.conversation import ContextFull, Conversation, Segment
from harbortrainer.policy.roles import Prompt
from harbortrainer.policy.sample import History

Message = tuple[str, str]  # role, content


class TinkerLLM(Conversation, BaseLLM):
    """One trial's policy, for Terminus-2: finds the segment of the conversation that a message history continues.

    A history that matches no segment (summarization rewrites it) opens a new segment, rendered from text. A truncated
    answer is a normal turn: OutputLengthExceededError, which makes Terminus-2 lose it, is never raised.
    """

    # Filled in by the agent, as are `parse_failures`; read by the trial:
    stop_reason = ""
    full = ""  # once a prompt left no room: its length
    deadline: float | None = None  # event loop time at which the agent has to stop, without what is lost
    written: Callable[[str], str] = str  # the prompt as the agent knows it: with who wrote which part

    @cached_property
    def _histories(self) -> list[list[Message]]:
        """Of the segments."""
        return []

    async def call(self, prompt: str, message_history: Sequence[Mapping[str, Any]] = (), **_: Any) -> LLMResponse:
        """Sample one answer. Raises ContextLengthExceededError, SamplingError."""
        if self.fault is not None:
            raise self.fault
        history = _pairs(message_history)
        with self.clocked():
            segment, new = self._next_prompt(history, prompt)
        prompt_tokens = len(segment.tokens_T) + len(new.ids)
        try:
            turn = await self.extend(segment, new, history=History(_messages([*history, ("user", prompt)])))
        except ContextFull as error:
            self.full = str(error)
            raise ContextLengthExceededError(self.full) from None
        with self.clocked():
            self.special_strings += self.template.special_strings(prompt)
            if segment.index == len(self._histories):
                self._histories.append(history)
            self._histories[segment.index] += [("user", prompt), ("assistant", turn.text)]
            thinking = self.template.answer(turn.completion_tokens_T).thinking
        completion_tokens = len(turn.completion_tokens_T)
        usage = UsageInfo(
            prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cache_tokens=0, cost_usd=0.0
        )
        return LLMResponse(content=turn.text, reasoning_content=thinking or None, usage=usage)

    def count_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Return exact number of tokens of a conversation as the policy would see it."""
        history = _pairs(messages)
        segment = self._segment_ending(history)
        if segment is not None:
            return len(segment.tokens_T)
        return len(self.template.first_prompt(_messages(history))) if history else 0

    def get_model_context_limit(self) -> int:
        return self.context_limit

    def get_model_output_limit(self) -> int:
        return self.max_tokens

    def _next_prompt(self, history: list[Message], prompt: str) -> tuple[Segment, Prompt]:
        """The segment to continue and what to add to it."""
        segment = self._segment_ending(history)
        if segment is not None:
            new = _messages([("user", self.written(prompt))])
            return segment, self.template.joined(segment.last_completion_T, new)
        return Segment(), self.template.opening(_messages([*history, ("user", prompt)]))

    def _segment_ending(self, history: list[Message]) -> Segment | None:
        if not history:
            return None
        pairs = zip(reversed(self.segments), reversed(self._histories), strict=True)
        return next((segment for segment, messages in pairs if messages == history), None)


def _pairs(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [(message["role"], message["content"]) for message in messages]


def _messages(pairs: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


# Harbor's TrialConfig is JSON, so an agent finds by name what it talks to. One process, one event loop.
_live: dict[str, Any] = {}


@contextmanager
def registered(name: str, llm: Any) -> Iterator[None]:
    """Let the agent of the trial `name` find `llm`, or its session. Raises ValueError when the name is in use."""
    if name in _live:
        raise ValueError(f"a trial named {name!r} is already running")
    _live[name] = llm
    try:
        yield
    finally:
        del _live[name]


def live_llm(name: str) -> Any:
    """Return what is registered for the running trial `name`. Raises KeyError."""
    return _live[name]
