"""One conversation from its start to its grade: the policy with native tools, the user, the environment."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harbortrainer.bundled.tau.domain import domain
from harbortrainer.bundled.tau.exchange import ENDS, MOST_ERRORS, Dialogue, End
from harbortrainer.bundled.tau.grade import grade
from harbortrainer.bundled.tau.tasks import key_of
from harbortrainer.bundled.tau.user import NewUser, TauUser
from harbortrainer.durable.disk import disk_errors, require_writable
from harbortrainer.durable.files import replace_text
from harbortrainer.learning.trajectory import Outcome, Role, Trajectory
from harbortrainer.learning.treatment import FAULTS
from harbortrainer.other_models.users import UserFault
from harbortrainer.policy.clock import Clock
from harbortrainer.policy.conversation import Answer, ContextFull, Conversation, result, user
from harbortrainer.policy.roles import Written
from harbortrainer.policy.sampler import SamplingError
from harbortrainer.policy.tools import Message
from harbortrainer.rollout.quarantine import SAMPLING, UNANSWERED, USER
from harbortrainer.rollout.venue import RunParts, TrialCancelled, TrialRequest, conversing
from harbortrainer.run.conversations import OWN_FILE

EMPTY = "Error: the answer was empty. Send a message to the user, or call a tool."
MOST_CALLS_IN_A_ROW = 30  # of the user: as many tools as telecom's has
_GRADING = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # of values that a tool stored
_FAILED = {
    End.STEPS: (Outcome.MAX_TURNS, "the conversation has as many messages as tau2 allows"),
    End.ERRORS: (Outcome.POLICY_ERROR, "too many failed or unreadable calls"),
}

# tau2's words where its own rules have not ended the conversation; all others are faults, without a reward.
_UNENDED = {Outcome.MAX_TURNS: End.STEPS, Outcome.CONTEXT_LENGTH: End.STEPS}

Verdict = tuple[Outcome, str, float | None]


@dataclass(eq=False)
class Talk:
    """A conversation under way. `user_seconds`: spent waiting for the user."""

    exchange: Dialogue
    conversation: Conversation
    user: TauUser
    most_turns: int
    user_seconds: float = 0.0
    empty: int = 0
    tool_errors: int = 0
    grades: dict[str, float] = field(default_factory=dict)

    async def run(self) -> Verdict:
        """Return outcome, detail and reward. Raises SamplingError and UserFault, which are no fault of the policy."""
        news: list[Message] = []
        while self.exchange.end is None:
            if self.exchange.waits_for_user:
                news = await self._ask_user()
                continue
            if self.most_turns and len(self.conversation.turns) >= self.most_turns:
                return Outcome.MAX_TURNS, "", 0.0
            asked = news if self.conversation.turns else [*self._opening()]
            try:
                answer = await self.conversation.ask(asked)
            except ContextFull as error:
                if not self.conversation.turns:
                    raise UserFault(f"before the policy's first turn, {error}") from error
                return Outcome.CONTEXT_LENGTH, str(error), 0.0
            news = self._take(answer)
        if self.exchange.end is End.ERRORS and self.exchange.errors - self.exchange.user_errors < MOST_ERRORS:
            raise UserFault(f"{self.exchange.user_errors} of the {self.exchange.errors} failed calls are the user's")
        return self._graded() if self.exchange.end is End.USER else (*_FAILED[self.exchange.end], 0.0)

    def _opening(self) -> list[Message]:
        """System, and the messages before the policy's first turn: greeting and user, or the task's own history."""
        messages: list[Message] = [{"role": "system", "content": self.exchange.domain.system_prompt}]
        for message in self.exchange.messages:
            if message["role"] == "tool":
                if message["requestor"] == "assistant":
                    messages.append(result(message["content"]))
            elif message["role"] == "assistant" or not message.get("tool_calls"):
                calls = [
                    {"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
                    for call in message.get("tool_calls") or ()
                ]
                text = message.get("content") or ""
                content = text if message["role"] == "assistant" else Written.by(Role.USER, text)
                said = {"role": message["role"], "content": content}
                messages.append(said | ({"tool_calls": calls} if calls else {}))
        return messages

    def _take(self, answer: Answer) -> list[Message]:
        """Hand the policy's answer to the environment or the user; what the policy sees next of it."""
        if answer.failure or answer.empty:
            self.empty += answer.empty
            told = answer.failure or EMPTY
            self.exchange.unreadable(self.conversation.turns[-1].text, told)
            return [result(told, Role.HARNESS)]
        results = self.exchange.agent(answer.text, answer.calls)
        self.tool_errors += sum(one.error for one in results)
        return [result(one.text) for one in results]

    async def _ask_user(self) -> list[Message]:
        """The user's next text, after the calls that it makes before; [] = it has ended the conversation."""
        started = time.monotonic()
        try:
            reply = await self.user.reply(self.exchange.heard())
        finally:
            self.user_seconds += time.monotonic() - started
        if not reply.calls and not reply.text.strip():
            raise UserFault("the user sent an empty message")
        if not (self.conversation.turns or reply.calls) and any(end in reply.text for end in ENDS):
            raise UserFault("the user ended the conversation before the policy's first turn")
        self.exchange.user(reply.text, reply.calls)
        if self.exchange.calls_in_a_row >= MOST_CALLS_IN_A_ROW:
            raise UserFault(f"the user called tools {MOST_CALLS_IN_A_ROW} times in a row and said nothing")
        return [] if reply.calls or self.exchange.end else [user(reply.text)]

    def _graded(self) -> Verdict:
        """Of a conversation that its user has ended."""
        try:
            self.grades = self.exchange.parts()
        except _GRADING as error:
            return Outcome.VERIFIER_ERROR, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", None
        return Outcome.COMPLETED, "", grade(self.grades)


async def run_conversation(request: TrialRequest, run: RunParts, new_user: NewUser) -> Trajectory:
    """Run one trial within `trial_timeout_sec` and grade it. Its folder gets `conversation.json`.

    Faults of sampling and of the user become the outcome infrastructure_error, without a reward. Raises TrialCancelled,
    DiskFault, UserError (the template refuses the messages), and errors in this package.
    """
    folder, config = request.trials_dir / request.name, run.config
    place, key = key_of(request.task)
    within = domain(place)
    await run.gates.weights.wait()
    started = time.monotonic()
    with conversing(Conversation, request, run, within.schemas) as conversation, disk_errors(folder):
        exchange = Dialogue(within, within.task(key))
        talk = Talk(exchange, conversation, new_user(within, exchange.task, request.seed), config.max_turns)
        opened = time.monotonic()
        verdict = await _verdict(talk, config.trial_timeout_sec)
        ended = time.monotonic()
        if verdict[0] in FAULTS:  # a full disk may be the real cause
            await asyncio.to_thread(require_writable, request.trials_dir)
        end = str(exchange.end or _UNENDED.get(verdict[0], "agent_error"))
        value = exchange.record(request.name, end, ended - started, talk.grades)
        value |= {"reward": verdict[2], "outcome": str(verdict[0])}
        await asyncio.to_thread(_write, folder / OWN_FILE, value)
    times = {"environment": opened - started, "agent": ended - opened, "user": talk.user_seconds}
    times |= {"sampling": sum(turn.seconds for turn in conversation.turns), "total": time.monotonic() - started}
    outcome, detail, reward = verdict
    counted = {"tool_errors": float(talk.tool_errors), "empty_answers": float(talk.empty)}
    return Trajectory(
        task_name=request.task.name,
        trial_name=request.name,
        turns=tuple(conversation.turns),
        reward=reward,
        outcome=outcome,
        detail=detail,
        attempt=request.attempt,
        times=times,
        stats=conversation.stats | counted | talk.user.stats,
        trial_dir=str(folder),
    )


def _write(file: Path, value: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(value))


async def _verdict(talk: Talk, limit_sec: float) -> Verdict:
    """Raises TrialCancelled."""
    try:
        async with Clock.of(limit_sec, talk.conversation.lost):
            return await talk.run()
    except TimeoutError:
        return Outcome.INFRASTRUCTURE_ERROR, _late(talk, limit_sec), None
    except SamplingError as error:
        return Outcome.INFRASTRUCTURE_ERROR, SAMPLING + str(error), None
    except UserFault as error:
        return Outcome.INFRASTRUCTURE_ERROR, f"{USER}{error}", None
    except asyncio.CancelledError:
        raise TrialCancelled(tuple(talk.conversation.turns), talk.user.stats) from None


def _late(talk: Talk, limit_sec: float) -> str:
    """Why a conversation was not over in time: a server that never answered, a user that was waited for."""
    if talk.conversation.unanswered and not talk.conversation.turns:
        return UNANSWERED
    waited = talk.exchange.waits_for_user or talk.user_seconds > limit_sec / 2
    return f"{USER * waited}not over after trial_timeout_sec={limit_sec:g}"
