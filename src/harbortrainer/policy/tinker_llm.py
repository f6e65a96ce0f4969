"""Harbor's LLM interface over the policy sampler: token-in, token-out; records every sampled turn."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from harbor.llms.base import BaseLLM, ContextLengthExceededError, LLMResponse
from harbor.models.metric import UsageInfo

from harbortrainer.learning.trajectory import Turn
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import Sample, Sampler, SamplingError

SMALLEST_ANSWER = 16  # tokens; with less room than this the context counts as full

Message = tuple[str, str]  # role, content


@dataclass
class _Segment:
    """One unbroken conversation: its messages, and the ids that the policy saw and sampled."""

    index: int
    messages: list[Message] = field(default_factory=list)
    tokens_T: list[int] = field(default_factory=list)
    last_completion_T: tuple[int, ...] = ()


class Listener(Protocol):
    """Called when the policy is asked for a turn, and with the number of tokens when it has answered."""

    def asked(self) -> None:
        return None

    def answered(self, tokens: int) -> None:
        return None


class _Ignore(Listener):
    pass


class TinkerLLM(BaseLLM):
    """One trial's policy. Next prompt = previous prompt + sampled ids + the new user turn: nothing is retokenized.

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
        self._sampler = sampler
        self._template = template
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._context_limit = context_limit
        self._listener = listener or _Ignore()
        self._seeds = random.Random(seed) if seed is not None else None
        self._segments: list[_Segment] = []
        self.turns: list[Turn] = []
        self.fault: SamplingError | None = None  # once sampling failed, every later call raises it again
        self.cpu_seconds = 0.0  # for templates, token ids and text
        self.special_strings = 0  # in the prompts of its turns, encoded as text
        # Filled in by the agent, read by the trial:
        self.parse_failures = 0
        self.stop_reason = ""
        self.deadline: float | None = None  # event loop time at which the agent has to stop

    async def call(self, prompt: str, message_history: Sequence[Mapping[str, Any]] = (), **_: Any) -> LLMResponse:
        """Sample one answer. Raises ContextLengthExceededError, SamplingError."""
        if self.fault is not None:
            raise self.fault
        started = time.thread_time()
        segment, new_T = self._next_prompt(_pairs(message_history), prompt)
        prompt_T = segment.tokens_T + new_T
        max_tokens = self._fitting(len(prompt_T))
        self.cpu_seconds += time.thread_time() - started
        self._listener.asked()
        try:
            sample = await self._sampler.sample(
                prompt_T,
                max_tokens=max_tokens,
                temperature=self._temperature,
                stop=self._template.stop_token_ids,
                seed=self._next_seed(),
            )
        except SamplingError as error:
            self.fault = error
            raise
        self._listener.answered(len(sample.tokens_T))
        started = time.thread_time()
        response = self._record(segment, prompt, prompt_T, new_T, sample)
        self.cpu_seconds += time.thread_time() - started
        return response

    def count_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Exact number of tokens of a conversation as the policy would see it."""
        history = _pairs(messages)
        segment = self._segment_ending(history)
        if segment is not None:
            return len(segment.tokens_T)
        return len(self._template.first_prompt(_messages(history))) if history else 0

    def get_model_context_limit(self) -> int:
        return self._context_limit

    def get_model_output_limit(self) -> int:
        return self._max_tokens

    def _next_prompt(self, history: list[Message], prompt: str) -> tuple[_Segment, list[int]]:
        """The segment to continue and the ids to add to it. Both are stored only with the answer."""
        segment = self._segment_ending(history)
        if segment is not None:
            return segment, self._template.join(segment.last_completion_T, prompt)
        fresh = _Segment(len(self._segments), list(history))
        return fresh, self._template.first_prompt(_messages([*history, ("user", prompt)]))

    def _segment_ending(self, history: list[Message]) -> _Segment | None:
        if not history:
            return None
        return next((segment for segment in reversed(self._segments) if segment.messages == history), None)

    def _fitting(self, prompt_tokens: int) -> int:
        """max_tokens, or fewer where the context ends. Raises ContextLengthExceededError below SMALLEST_ANSWER."""
        room = self._context_limit - prompt_tokens
        if room >= self._max_tokens:
            return self._max_tokens
        if room < min(SMALLEST_ANSWER, self._max_tokens):
            raise ContextLengthExceededError(
                f"the prompt has {prompt_tokens} tokens and context_limit is {self._context_limit}"
            )
        return 1 << (room.bit_length() - 1) if self._sampler.powers_of_two else room

    def _next_seed(self) -> int | None:
        return self._seeds.getrandbits(31) if self._seeds is not None else None

    def _record(
        self, segment: _Segment, prompt: str, prompt_T: list[int], new_T: list[int], sample: Sample
    ) -> LLMResponse:
        answer = self._template.answer(sample.tokens_T)
        turn = Turn(
            segment=segment.index,
            new_tokens_T=tuple(new_T),
            completion_tokens_T=sample.tokens_T,
            logprobs_T=sample.logprobs_T,
            weights_version=sample.version,
            truncated=sample.truncated,
            seconds=sample.seconds,
            text=answer.text,
        )
        self.turns.append(turn)
        self.special_strings += self._template.special_strings(prompt)
        if segment.index == len(self._segments):
            self._segments.append(segment)
        segment.tokens_T = [*prompt_T, *sample.tokens_T]
        segment.last_completion_T = sample.tokens_T
        segment.messages += [("user", prompt), ("assistant", answer.text)]
        usage = UsageInfo(
            prompt_tokens=len(prompt_T), completion_tokens=len(sample.tokens_T), cache_tokens=0, cost_usd=0.0
        )
        return LLMResponse(content=answer.text, reasoning_content=answer.thinking or None, usage=usage)


def _pairs(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [(message["role"], message["content"]) for message in messages]


def _messages(pairs: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


# Harbor's TrialConfig is JSON, so an agent finds its LLM by name. One process, one event loop.
_live: dict[str, TinkerLLM] = {}


@contextmanager
def registered(name: str, llm: TinkerLLM) -> Iterator[None]:
    """Let the agent of the trial `name` find `llm`. Raises ValueError when the name is in use."""
    if name in _live:
        raise ValueError(f"a trial named {name!r} is already running")
    _live[name] = llm
    try:
        yield
    finally:
        del _live[name]


def live_llm(name: str) -> TinkerLLM:
    """The LLM of the running trial `name`. Raises KeyError."""
    return _live[name]
