"""One trial's exchange with an agent that keeps its own history: messages in, exact ids out.

What the agent sends again is matched, in normal form (`normal.py`), with what was said: a tree of prefixes, each with
the ids that the policy saw and sampled. Only what is new is rendered. A history that matches none opens a segment.
"""

import asyncio
import functools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Role, Turn
from harbortrainer.model_api.normal import digest_after, digests
from harbortrainer.model_api.prompts import Prompts, letters
from harbortrainer.model_api.reply import Busy, Call, Over, Reason, Reply
from harbortrainer.policy.clock import Alarm
from harbortrainer.policy.conversation import ContextFull, Conversation, Segment
from harbortrainer.policy.roles import Prompt
from harbortrainer.policy.sample import History
from harbortrainer.policy.tools import Message, Tool, signatures

AT_ONCE = 4  # samples of one trial
MOST_LETTERS_A_TOKEN = 32  # of a prompt; a text with more is too long without being encoded
MATCHED = "wire_matched"  # turns whose history was known
JOINED, REPLAYED = "wire_joined", "wire_replayed"  # repeated requests that got the first one's answer: in flight, there
TWINS = "wire_twins"  # answers with the normal form of another one to the same history
SIDE_TURNS = 32  # beside the agent's own: titles, summaries, calls of the policy itself


@dataclass(slots=True)
class _Node:
    """The end of an answer within a segment. Its ids are the first `length` of the segment's."""

    segment: Segment
    length: int
    completion_T: tuple[int, ...]
    continued: bool = False


@dataclass(slots=True)
class _Asked:
    """A request with what the tree knows of it."""

    messages: Sequence[Message]
    tools: Sequence[Tool]
    digests: list[str]
    node: _Node | None = None  # its last answer, with the ids that were sampled
    known: int = 0  # messages up to that answer
    foreign: bool = False  # it has an answer whose ids are not known, though the trial has had answers

    @property
    def identity(self) -> "Identity":
        return self.digests[0], bool(self.messages) and self.messages[0]["role"] == "system"


@dataclass(slots=True)
class _Opened:
    """How a segment began: with tokens that another one has too (a branch), or from text."""

    identity: "Identity"
    repeated: int  # tokens that another segment has too; of a foreign one all
    foreign: bool


Identity = tuple[str, bool]  # what all segments of one agent share: its tools, and whether it has a system message


class Exchange:
    """One trial's policy for an agent in a container. One event loop; `say` may run several times at once.

    `over`: why the trial gets no more answers, "" = it does; `ended` is set then. `full`: why the agent's newest
    request was too long, "" = it was not; this ends nothing where it may compact. `fault`: a SamplingError, an error of
    this program, or what `fail` was told.
    """

    def __init__(
        self,
        conversation: Conversation,
        prompts: Prompts,
        *,
        max_turns: int = 0,
        side_turns: int = SIDE_TURNS,
        may_compact: bool = False,
        at_once: int = AT_ONCE,
        first_share: float = 1.0,
    ) -> None:
        """`conversation`: a new one. `prompts`: of the run. `max_turns`: of the agent, `side_turns`: of all others.

        0 = no limit. `may_compact`: a full context is refused without an end, since the agent may shorten its history.
        `first_share`: of the context, which the agent's first prompt may take.
        """
        self.conversation = conversation
        self.over: Reason | Literal[""] = ""
        self.ended = asyncio.Event()
        self.full = ""
        self.fault: Exception | None = None
        self._prompts = prompts
        self._max_turns, self._side_turns = max_turns, side_turns
        self._may_compact, self._at_once, self._first_share = may_compact, at_once, first_share
        self._deadline: float | None = None
        self._alarm = Alarm(functools.partial(self.end, "timeout"), conversation.lost)
        self._counts = Counter[str]({MATCHED: 0, JOINED: 0, REPLAYED: 0, TWINS: 0})
        self._nodes: dict[str, _Node] = {}  # by the digest of the conversation up to an answer
        self._newest: _Asked | None = None
        self._opened: list[_Opened] = []  # of the conversation's segments
        self._agent: Identity | None = None  # of the first request with tools
        self._admitted: Counter[Identity] = Counter()
        self._running: set[asyncio.Task[Reply]] = set()
        self._samples: dict[str, asyncio.Task[Reply]] = {}  # the newest of each request
        self._unread: set[str] = set()  # requests whose client left before its answer

    # -- what the trial reads

    @property
    def turns(self) -> list[Turn]:
        """All sampled turns, those of side segments too."""
        return self.conversation.turns

    @property
    def side_segments(self) -> tuple[int, ...]:
        """Segments without loss: another tool list than the agent's, or no system message where the agent has one.

        The agent is who first declares tools. Titles, summaries, sub-agents with fewer tools and the policy's own calls
        are beside it.
        """
        if self._agent is None:
            return ()
        return tuple(index for index, one in enumerate(self._opened) if one.identity != self._agent)

    @property
    def stats(self) -> dict[str, float]:
        """Counts for `Trajectory.stats`; `gate.py` judges them."""
        side = set(self.side_segments)
        agent = [one for index, one in enumerate(self._opened) if index not in side]
        unlike = [turn for turn in self.turns if turn.segment in side]
        tokens = sum(len(one.tokens_T) for one in self.conversation.segments if one.index not in side)
        repeated = sum(one.repeated for one in agent)
        counted = {
            "wire_turns": len(self.turns),
            "wire_segments": len(self._opened),
            "wire_foreign": sum(one.foreign for one in agent),
            "wire_branches": sum(one.repeated > 0 and not one.foreign for one in agent),
            "wire_side_turns": len(unlike),
            "wire_side_tokens": sum(len(turn.completion_tokens_T) for turn in unlike),
            "wire_tokens": tokens,
            "wire_repeated_tokens": repeated,
            "wire_tokens_per_unique_token": tokens / (tokens - repeated) if tokens else 0.0,
            "tool_calls": self.conversation.tool_calls,
            "tool_fallbacks": self.conversation.tool_fallbacks,
            "tool_bare": self.conversation.tool_bare,
        }
        return self.conversation.stats | {name: float(value) for name, value in (counted | self._counts).items()}

    # -- its limits

    def lost(self) -> float:
        """Return seconds so far that are not the policy's."""
        return self.conversation.lost()

    @property
    def deadline(self) -> float | None:
        """Event loop time at which the trial is over, without what is lost until then; None = none.

        Answers in flight are given up then.
        """
        return self._deadline

    @deadline.setter
    def deadline(self, at: float | None) -> None:
        self._deadline = self._alarm.due = at

    def end(self, reason: Reason) -> None:
        """Answer no request from now on; the first reason stays. A limit lets samples in flight finish."""
        self.over = self.over or reason
        self.ended.set()
        if reason in ("timeout", "fault", "closed"):
            for sample in self._running:
                sample.cancel()

    def fail(self, fault: Exception) -> None:
        """End the trial by a fault that is not the policy's; the first one is kept."""
        self.fault = self.fault or fault
        self.end("fault")

    def reopen(self) -> None:
        """Answer again after `close`, as from the start: the task has another step. Not after a fault."""
        if self.fault is None:
            self.over, self.full = "", ""
            self.ended.clear()
            for one in (self._admitted, self._samples, self._unread):
                one.clear()
            self.deadline = self._deadline

    def refused(self, status: int) -> None:
        """Count a request that got no answer."""
        self._counts[f"wire_refused_{status}"] += 1

    async def close(self) -> None:
        """End samples in flight; the sampler finishes its own requests. `over` is "closed" if it had no reason."""
        self._alarm.due = None
        running = list(self._running)
        self.end("closed")
        await asyncio.gather(*running, return_exceptions=True)

    # -- what the agent asks

    async def say(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        asked_max_tokens: int | None = None,
        again: bool = False,
    ) -> Reply:
        """Return the policy's answer to a whole conversation, in the form that the wires' readers give.

        `again`: the client says that it repeats a request; it then gets the answer to the first. So does one that asks
        the same after it left: cancelling `say` leaves the sample running. Any other equal request is a fresh sample.
        Raises Over, Busy, SamplingError, UserError (the template refuses the messages).
        """
        with self.conversation.clocked():
            asked = self._match(messages, tools)
        request = asked.digests[-1]
        first = self._samples.get(request)
        if first is not None and (again or request in self._unread):
            self._counts[REPLAYED if first.done() else JOINED] += 1
            return await self._wait(request, first)
        self._admit(asked)
        sample = asyncio.create_task(self._sample(asked, asked_max_tokens))
        self._samples[request] = sample
        self._running.add(sample)
        sample.add_done_callback(self._sampled)
        return await self._wait(request, sample)

    async def count(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> int:
        """Return tokens that the prompt of `say` would have. Raises Over (longer than the context), UserError."""
        asked = self._match(messages, tools)
        try:
            return (asked.node.length if asked.node else 0) + len((await self._render(asked)).ids)
        except ContextFull as error:
            raise Over("context_length", str(error)) from None

    async def _wait(self, request: str, sample: "asyncio.Task[Reply]") -> Reply:
        self._unread.discard(request)
        try:
            return await asyncio.shield(sample)
        except asyncio.CancelledError:
            if sample.cancelled():
                raise Over(self.over or "closed", "the trial is over") from None
            self._unread.add(request)
            raise

    def _match(self, messages: Sequence[Message], tools: Sequence[Tool]) -> _Asked:
        """Only the last answer counts: its digest stands for everything before it."""
        found = digests(messages, tools, self._begun(messages, tools))
        known = max((at for at, message in enumerate(messages, 1) if message["role"] == "assistant"), default=0)
        node = self._nodes.get(found[known]) if 0 < known < len(messages) else None
        foreign = known > 0 and node is None and bool(self.turns)
        self._newest = _Asked(messages, tools, found, node, known if node else 0, foreign)
        return self._newest

    def _begun(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
        """Digests of what this request has in common with the newest one: comparing takes a tenth of their time."""
        if (newest := self._newest) is None or newest.tools != tools:
            return []
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(newest.messages, messages, strict=False))
        return newest.digests[: 1 + sum(1 for _ in alike)]

    def _admit(self, asked: _Asked) -> None:
        """Count a request against its limit. Raises Over, Busy."""
        if self.over:
            raise Over(self.over, f"the trial is over: {self.over}")
        if len(self._running) >= self._at_once:
            raise Busy(f"{self._at_once} requests of this trial are being answered")
        if self._agent is None and asked.tools:
            self._agent = asked.identity
        asks = self._admitted.total()
        own = self._admitted[self._agent] if self._agent else asks
        if not self._is_agents(asked):
            if self._side_turns and asks - own >= self._side_turns:
                raise Over("max_turns", f"{self._side_turns} calls beside the agent's are answered")
        elif self._max_turns and own >= self._max_turns:
            self.end("max_turns")
            raise Over("max_turns", f"the agent has had {self._max_turns} turns")
        self._admitted[asked.identity] += 1

    def _is_agents(self, asked: _Asked) -> bool:
        return self._agent in (None, asked.identity)

    def _sampled(self, sample: "asyncio.Task[Reply]") -> None:
        self._running.discard(sample)
        error = None if sample.cancelled() else sample.exception()
        if isinstance(error, Exception) and not isinstance(error, Over | UserError):
            self.fail(error)

    async def _sample(self, asked: _Asked, asked_max_tokens: int | None) -> Reply:
        node = asked.node
        continues = node is not None and not node.continued
        if node is not None and continues:
            node.continued = True  # before anything is awaited: a second request for this place is a branch
        try:
            segment, turn = await self._extend(asked, continues, asked_max_tokens)
        except BaseException:
            self._admitted[asked.identity] -= self._is_agents(asked)  # others pay for the work that a refusal takes
            if node is not None and continues:
                node.continued = False
            raise
        self.full = "" if self._is_agents(asked) else self.full
        with self.conversation.clocked():
            return self._reply(asked, segment, turn)

    async def _extend(self, asked: _Asked, continues: bool, most: int | None) -> tuple[Segment, Turn]:
        """Raises Over, SamplingError, UserError."""
        node, history = asked.node, History(asked.messages, asked.tools)
        try:
            new = await self._render(asked)
            if node is not None and continues:
                return node.segment, await self.conversation.extend(node.segment, new, most=most, history=history)
            kept_T = node.segment.tokens_T[: node.length] if node is not None else []
            segment, before = Segment(), bytes([Role.HARNESS]) * len(kept_T)
            whole = Prompt([*kept_T, *new.ids], before + new.roles)
            self._require_room(asked, len(whole.ids))
            turn = await self.conversation.extend(segment, whole, most=most, history=history)
        except ContextFull as error:
            if self._is_agents(asked):
                self.full = str(error)
                if not self._may_compact:
                    self.end("context_length")
            raise Over("context_length", str(error)) from None
        repeated = len(kept_T) or len(new.ids) * asked.foreign
        self._opened.append(_Opened(asked.identity, repeated, asked.foreign))
        return segment, turn

    def _require_room(self, asked: _Asked, n_tokens: int) -> None:
        """Raises ContextFull when the agent's first prompt would leave too little of the context to the trial."""
        limit = self.conversation.context_limit
        first = self._is_agents(asked) and all(one.identity != asked.identity for one in self._opened)
        if first and self._first_share * limit < n_tokens < limit:
            share = f"more than {self._first_share:.0%} of context_limit={limit}"
            raise ContextFull(f"the prompt has {n_tokens} tokens, {share}")

    async def _render(self, asked: _Asked) -> Prompt:
        """Ids of what is new. Raises ContextFull, UserError."""
        new = asked.messages[asked.known :]
        limit, clock = self.conversation.context_limit, self.conversation.clocked
        if (length := letters(new, () if asked.node else asked.tools)) > MOST_LETTERS_A_TOKEN * limit:
            raise ContextFull(f"the prompt has {length} characters and context_limit is {limit}")
        if asked.node is not None:
            return await self._prompts.after(asked.node.completion_T, new, asked.tools, clock)
        return await self._prompts.first(asked.digests[-1], new, asked.tools, clock)

    def _reply(self, asked: _Asked, segment: Segment, turn: Turn) -> Reply:
        """Read the newest turn and enter it into the tree."""
        new, declared = asked.messages[asked.known :], () if asked.node else asked.tools
        self.conversation.special_strings += self._prompts.template.strings_hidden(new, declared)
        self._counts[MATCHED] += asked.node is not None
        form = self._prompts.call_form if asked.tools else None
        answer = self.conversation.read(turn, form, signatures(asked.tools))
        calls = tuple(
            Call(f"call_{len(self.turns)}_{number}", one.name, json.dumps(one.arguments, ensure_ascii=False))
            for number, one in enumerate(answer.calls)
        )
        length, sampled = len(segment.tokens_T), len(turn.completion_tokens_T)
        functions = [{"function": {"name": one.name, "arguments": one.arguments}} for one in answer.calls]
        said = {"role": "assistant", "content": answer.text, "tool_calls": functions}
        echo = digest_after(asked.digests[-1], said)
        self._counts[TWINS] += echo in self._nodes
        self._nodes[echo] = _Node(segment, length, turn.completion_tokens_T)
        return Reply(answer.text, answer.thinking, calls, answer.truncated, length - sampled, sampled)
