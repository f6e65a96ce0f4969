"""Harbor's LLM interface over a conversation with the policy."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from harbor.llms.base import BaseLLM, ContextLengthExceededError, LLMResponse
from harbor.models.metric import UsageInfo

from harbortrainer.learning.trajectory import Turn
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import ContextFull, Conversation, Listener, Segment
from harbortrainer.policy.sampler import Sampler, SamplingError

Message = tuple[str, str]  # role, content


class TinkerLLM(BaseLLM):
    """One trial's policy, for Terminus-2: finds the segment of a conversation that a message history continues.

    A history that matches no segment (summarization rewrites it) opens a new segment, rendered from text. A truncated
    answer is a normal turn: OutputLengthExceededError, which makes Terminus-2 lose it, is never raised.
    """

    def __init__(
        self,
        sampler: Sampler,
        template: ChatTemplate,
        *,
        max_tokens: int,
        temperature: float,
        context_limit: int,
        seed: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        """`max_tokens`: of one answer; `context_limit`: tokens of prompt and answer together."""
        super().__init__()
        self.conversation = Conversation(
            sampler,
            template,
            max_tokens=max_tokens,
            temperature=temperature,
            context_limit=context_limit,
            seed=seed,
            listener=listener,
        )
        self._histories: list[list[Message]] = []  # of the conversation's segments
        # Filled in by the agent, read by the trial:
        self.parse_failures = 0
        self.stop_reason = ""
        self.deadline: float | None = None  # event loop time at which the agent has to stop

    @property
    def turns(self) -> list[Turn]:
        return self.conversation.turns

    @property
    def fault(self) -> SamplingError | None:
        return self.conversation.fault

    @property
    def cpu_seconds(self) -> float:
        """For templates, token ids and text."""
        return self.conversation.cpu_seconds

    @property
    def special_strings(self) -> int:
        """In the prompts of its turns, encoded as text."""
        return self.conversation.special_strings

    @property
    def stats(self) -> dict[str, float]:
        """Counts for `Trajectory.stats`."""
        return {
            "parse_failures": float(self.parse_failures),
            "special_strings": float(self.special_strings),
            "own_cpu_seconds": self.cpu_seconds,
        }

    async def call(self, prompt: str, message_history: Sequence[Mapping[str, Any]] = (), **_: Any) -> LLMResponse:
        """Sample one answer. Raises ContextLengthExceededError, SamplingError."""
        if self.fault is not None:
            raise self.fault
        conversation, history = self.conversation, _pairs(message_history)
        with conversation.clocked():
            segment, new_T = self._next_prompt(history, prompt)
        prompt_tokens = len(segment.tokens_T) + len(new_T)
        try:
            turn = await conversation.extend(segment, new_T)
        except ContextFull as error:
            raise ContextLengthExceededError(str(error)) from None
        with conversation.clocked():
            conversation.special_strings += conversation.template.special_strings(prompt)
            if segment.index == len(self._histories):
                self._histories.append(history)
            self._histories[segment.index] += [("user", prompt), ("assistant", turn.text)]
            thinking = conversation.template.answer(turn.completion_tokens_T).thinking
        completion_tokens = len(turn.completion_tokens_T)
        usage = UsageInfo(
            prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cache_tokens=0, cost_usd=0.0
        )
        return LLMResponse(content=turn.text, reasoning_content=thinking or None, usage=usage)

    def count_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Exact number of tokens of a conversation as the policy would see it."""
        history = _pairs(messages)
        segment = self._segment_ending(history)
        if segment is not None:
            return len(segment.tokens_T)
        return len(self.conversation.template.first_prompt(_messages(history))) if history else 0

    def get_model_context_limit(self) -> int:
        return self.conversation.context_limit

    def get_model_output_limit(self) -> int:
        return self.conversation.max_tokens

    def _next_prompt(self, history: list[Message], prompt: str) -> tuple[Segment, list[int]]:
        """The segment to continue and the ids to add to it."""
        template = self.conversation.template
        segment = self._segment_ending(history)
        if segment is not None:
            return segment, template.join(segment.last_completion_T, prompt)
        return self.conversation.fresh(), template.first_prompt(_messages([*history, ("user", prompt)]))

    def _segment_ending(self, history: list[Message]) -> Segment | None:
        if not history:
            return None
        pairs = zip(reversed(self.conversation.segments), reversed(self._histories), strict=True)
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
    """What is registered for the running trial `name`. Raises KeyError."""
    return _live[name]
