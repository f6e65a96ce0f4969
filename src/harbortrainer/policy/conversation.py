"""One trial's exchange with the policy, tokens in and tokens out; records every sampled turn."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from harbortrainer.learning.trajectory import Role, Turn
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.roles import Prompt, Written
from harbortrainer.policy.sample import History
from harbortrainer.policy.sampler import Sample, Sampler, SamplingError
from harbortrainer.policy.tools import BARE, CallForm, Message, Parsed, Signatures, Tool, parse, signatures

SMALLEST_ANSWER = 16  # tokens; with less room than this the context counts as full


class ContextFull(Exception):
    """The prompt leaves no room for an answer within `context_limit`."""


class Listener:
    """A function called when the policy is asked for a turn, and with the number of tokens when it has answered.

    This one ignores both calls.
    """

    def asked(self) -> None: ...

    def answered(self, tokens: int) -> None: ...


@dataclass
class Segment:
    """One unbroken chain of prompts and answers: the ids that the policy saw and sampled.

    It counts once it has an answer.
    """

    index: int = -1  # in `Conversation.segments`; -1 = it has no answer yet
    tokens_T: list[int] = field(default_factory=list)
    last_completion_T: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer(Parsed):
    """What the policy answered, read; the whole of it is in `Turn.text`. `failure`: what a tool's result says of it."""

    thinking: str = ""
    truncated: bool = False  # stopped by max_tokens

    @property
    def empty(self) -> bool:
        """Whether it has neither text nor a call."""
        return not (self.calls or self.failure or self.text.strip())


def user(text: str) -> Message:
    """Return a message of the simulated user, for `Conversation.ask`."""
    return {"role": "user", "content": Written.by(Role.USER, text)}


def result(text: str, by: Role = Role.ENVIRONMENT) -> Message:
    """Return what one tool returned, or the harness says in its place, for `Conversation.ask`."""
    return {"role": "tool", "content": Written.by(by, text)}


def said(answer: Answer) -> Message:
    """Return what the policy answered, as a message for `History`."""
    calls = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in answer.calls]
    return {"role": "assistant", "content": answer.text} | ({"tool_calls": calls} if calls else {})


class Conversation:
    """Next prompt = previous prompt + sampled ids + the new messages: nothing sampled is rendered or tokenised again.

    With thinking on, the thoughts of earlier answers stay in the prompt, where some templates would drop them.
    """

    side_segments: tuple[int, ...] = ()  # without loss: none

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
        tools: Sequence[Tool] = (),
    ) -> None:
        """`max_tokens`: of an answer; `context_limit`: tokens of prompt and answer together.

        `tools`: declared in the first prompt. Raises UserError when the template does not render them.
        """
        self.template = template
        self.max_tokens, self.context_limit = max_tokens, context_limit
        self._sampler = sampler
        self._temperature = temperature
        self._listener = listener or Listener()
        self._seeds = random.Random(seed) if seed is not None else None
        self._tools = tuple(tools)
        self._form = template.call_form if tools else None
        self._known = signatures(tools)
        self.segments: list[Segment] = []
        self.turns: list[Turn] = []
        self._asked_so_far: list[Message] = []  # by `ask`
        self.fault: SamplingError | None = None  # once sampling failed, every later call raises it again
        self._asked = self._waiting = 0  # requests: so far, now
        self._waits_since = self._lost_sec = 0.0
        self.cpu_seconds = 0.0  # for templates, token ids and text
        self.special_strings = 0  # in what was not sampled, encoded as text
        self.parse_failures = 0
        self.tool_calls = self.tool_fallbacks = self.tool_bare = 0

    @property
    def stats(self) -> dict[str, float]:
        """Counts for `Trajectory.stats`."""
        counted = {
            "parse_failures": self.parse_failures,
            "special_strings": self.special_strings,
            "own_cpu_seconds": self.cpu_seconds,
        }
        if self._tools:
            counted |= {
                "tool_calls": self.tool_calls,
                "tool_fallbacks": self.tool_fallbacks,
                "tool_bare": self.tool_bare,
            }
        return {name: float(value) for name, value in counted.items()}

    async def ask(self, messages: Sequence[Message]) -> Answer:
        """Return the policy's answer to the messages since its last one: a user's text, or results of tools, or both.

        The first call takes the whole opening: system, greeting, user. Raises ContextFull, SamplingError, UserError
        (the template refuses the messages).
        """
        with self.clocked():
            if self.segments:
                segment = self.segments[-1]
                new = self.template.joined(segment.last_completion_T, messages, self._tools)
            else:
                segment, new = Segment(), self.template.opening(messages, self._tools)
        history = History([*self._asked_so_far, *messages], self._tools)
        turn = await self.extend(segment, new, history=history)
        with self.clocked():
            declared = self._tools if len(self.turns) == 1 else ()
            self.special_strings += self.template.strings_hidden(messages, declared)
            answer = self.read(turn, self._form, self._known)
            self._asked_so_far = [*history.messages, said(answer)]
            return answer

    async def extend(
        self,
        segment: Segment,
        new: Prompt,
        *,
        most: int | None = None,
        history: History | None = None,
    ) -> Turn:
        """Sample the answer to the segment's ids and those of `new`. Raises ContextFull, SamplingError.

        Both ids are stored only with the answer. `most`: tokens of this answer, where fewer than max_tokens.
        `history`: the same prompt as messages. Several segments may be extended at once.
        """
        if self.fault is not None:
            raise self.fault
        prompt_T = [*segment.tokens_T, *new.ids]
        max_tokens = self._fitting(len(prompt_T), min(most or self.max_tokens, self.max_tokens))
        self._listener.asked()
        try:
            with self._waits():
                sample = await self._sampler.sample(
                    prompt_T,
                    max_tokens=max_tokens,
                    temperature=self._temperature,
                    stop=self.template.stop_token_ids,
                    seed=self._seeds.getrandbits(31) if self._seeds is not None else None,
                    history=history,
                )
        except SamplingError as error:
            self.fault = error
            raise
        self._listener.answered(len(sample.tokens_T))
        with self.clocked():
            return self._record(segment, prompt_T, new, sample)

    def lost(self) -> float:
        """Return seconds so far in which it waited for a server that could not answer: they are not the policy's."""
        return self._lost_sec + (self._sampler.lost_since(self._waits_since) if self._waiting else 0.0)

    @property
    def unanswered(self) -> bool:
        """Whether a request was given up: the policy was asked, and no answer came."""
        return self._asked > len(self.turns)

    @contextmanager
    def _waits(self) -> Iterator[None]:
        if not self._waiting:
            self._waits_since = asyncio.get_running_loop().time()
        self._asked += 1
        self._waiting += 1
        try:
            yield
        finally:
            lost = self.lost()
            self._waiting -= 1
            self._lost_sec = lost if not self._waiting else self._lost_sec

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Count the CPU time of the block, which must not await anything."""
        started = time.thread_time()
        try:
            yield
        finally:
            self.cpu_seconds += time.thread_time() - started

    def _fitting(self, prompt_tokens: int, most: int) -> int:
        """`most`, or fewer where the context ends. Raises ContextFull below SMALLEST_ANSWER."""
        room = self.context_limit - prompt_tokens
        if room >= most:
            return most
        if room < min(SMALLEST_ANSWER, most):
            raise ContextFull(f"the prompt has {prompt_tokens} tokens and context_limit is {self.context_limit}")
        return 1 << (room.bit_length() - 1) if self._sampler.powers_of_two else room

    def _record(self, segment: Segment, prompt_T: list[int], new: Prompt, sample: Sample) -> Turn:
        if segment.index < 0:
            segment.index = len(self.segments)
            self.segments.append(segment)
        turn = Turn(
            segment=segment.index,
            new_tokens_T=tuple(new.ids),
            roles_T=new.roles,
            completion_tokens_T=sample.tokens_T,
            logprobs_T=sample.logprobs_T,
            weights_version=sample.version,
            truncated=sample.truncated,
            seconds=sample.seconds,
            text=self.template.answer(sample.tokens_T).text,
        )
        self.turns.append(turn)
        prompt_T.extend(sample.tokens_T)  # in place: a copy of 20,000 ids takes longer than reading the answer
        segment.tokens_T = prompt_T
        segment.last_completion_T = sample.tokens_T
        return turn

    def read(self, turn: Turn, form: CallForm | None, known: Signatures) -> Answer:
        """Return what a turn says; `form` of its calls, None = it has none. `known`: of `tools.signatures`.

        Counts the calls, and answers that cannot be read.
        """
        thinking = self.template.answer(turn.completion_tokens_T).thinking
        if form is None:
            return Answer(turn.text, thinking=thinking, truncated=turn.truncated)
        parsed = parse(turn.text, form, known)
        self.parse_failures += bool(parsed.failure)
        self.tool_calls += len(parsed.calls)
        self.tool_fallbacks += len(parsed.fallbacks) - (bare := parsed.fallbacks.count(BARE))
        self.tool_bare += bare
        return Answer(parsed.text, parsed.calls, parsed.failure, parsed.fallbacks, thinking, turn.truncated)
