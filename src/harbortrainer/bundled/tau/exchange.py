"""The state of one conversation between agent, user and environment, by the rules of tau2's orchestrator.

A message is text or calls; with both it counts as calls and the user never sees the text. All calls of a message run in
order. The user ends the conversation; the agent cannot. Messages are kept in tau2's form, so that its own evaluator can
read them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from harbortrainer.bundled.tau.domain import GREETING, CallResult, Domain
from harbortrainer.bundled.tau.grade import parts
from harbortrainer.policy.tools import ToolCall

MOST_STEPS = 200  # messages and sets of results, as tau2's command line has it
MOST_ERRORS = 10  # of tools; here also answers that cannot be read
ENDS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")  # in a text of the user


class End(StrEnum):
    """tau2's reasons for the end of a conversation. Only the first is graded; the others are 0."""

    USER = "user_stop"
    STEPS = "max_steps"
    ERRORS = "too_many_errors"


@dataclass(eq=False)
class Dialogue:
    """A talk. `messages`: in tau2's form; `shown`: those, and answers that could not be read with what was said about
    them.

    `errors`: of both; `user_errors`: of the user's calls; `calls_in_a_row`: messages of the user with calls only.
    """

    domain: Domain
    task: Any
    steps: int = 0
    errors: int = 0
    user_errors: int = 0
    calls_in_a_row: int = 0
    end: End | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = self.domain.world(self.task)
        start = self.task.initial_state
        for message in (start.message_history if start is not None else None) or []:
            self._add(message.model_dump(mode="json", exclude={"turn_idx"}))
        if not self.messages:
            self._add({"role": "assistant", "content": GREETING})

    @property
    def waits_for_user(self) -> bool:
        """Whether the next message is the user's; else it is the agent's."""
        last = self.messages[-1]
        if last["role"] == "tool":
            return last["requestor"] == "user"
        return last["role"] == "assistant"

    def agent(self, text: str, calls: Sequence[ToolCall] = ()) -> list[CallResult]:
        """Take the agent's message, and run its calls."""
        return self._take("assistant", text, calls)

    def user(self, text: str, calls: Sequence[ToolCall] = ()) -> list[CallResult]:
        """Take the user's message, and run its calls. A message with calls ends nothing, whatever its text."""
        if not calls and any(end in text for end in ENDS):
            self.end = End.USER
        results = self._take("user", text, calls)
        self.calls_in_a_row = self.calls_in_a_row + 1 if calls else 0
        self.user_errors += sum(result.error for result in results)
        return results

    def unreadable(self, text: str, answer: str) -> None:
        """Take an answer of the agent that is no message: it counts as a step and as an error."""
        self.shown += [{"role": "assistant", "content": text}, {"role": "tool", "content": answer, "error": True}]
        self.errors += 1
        self._count(2)

    def heard(self) -> list[dict[str, Any]]:
        """Return what the user has seen: texts of both, its own calls and their results."""
        return [message for message in self.messages if _concerns_user(message)]

    def parts(self) -> dict[str, float]:
        """Return the grade by basis of a conversation that its user has ended."""
        mine = [message for message in self.messages if message["role"] == "assistant"]
        called = [call for message in self.messages for call in message.get("tool_calls") or ()]
        calls = [ToolCall(call["name"], call["arguments"]) for call in called]
        return parts(self.domain, self.task, self.world, [message.get("content") or "" for message in mine], calls)

    def record(self, name: str, end: str, seconds: float, grades: Mapping[str, float]) -> dict[str, Any]:
        """Return tau2's `SimulationRun` as JSON values, and what a person wants to see beside it.

        `end`: tau2's reason; `grades`: by basis, {} = ungraded. `messages` are those that tau2 knows; `system` and
        `tools` are what the policy's first prompt holds.
        """
        return {
            "id": name,
            "task_id": self.task.id,
            "start_time": self.messages[0]["timestamp"],
            "end_time": self.messages[-1]["timestamp"],
            "duration": seconds,
            "termination_reason": end,
            "messages": self.messages,
            "domain": self.domain.data.name,
            "package": self.domain.data.version,
            "grades": grades,
            "system": self.domain.system_prompt,
            "tools": self.domain.schemas,
            "shown": self.shown,
        }

    def _take(self, role: str, text: str, calls: Sequence[ToolCall]) -> list[CallResult]:
        """`role`: whose message it is, and who asks for the calls."""
        self._add({"role": role, "content": text or None} | _calls(calls, role, len(self.messages)))
        if not calls:
            self._count(1)
            return []
        results = [self.world.respond(call, role) for call in calls]
        self.errors += sum(result.error for result in results)
        sent = self.messages[-1]["tool_calls"]
        for call, result in zip(sent, results, strict=True):
            told = {"id": call["id"], "requestor": call["requestor"], "error": result.error}
            self._add({"role": "tool", "content": result.text} | told)
        self._count(2)
        return results

    def _count(self, steps: int) -> None:
        """tau2 asks for both limits after each step that is not a call; they go before the user's end."""
        self.steps += steps
        if self.steps >= MOST_STEPS:
            self.end = End.STEPS
        if self.errors >= MOST_ERRORS:
            self.end = End.ERRORS

    def _add(self, message: dict[str, Any]) -> None:
        message = {"turn_idx": len(self.messages), "timestamp": datetime.now().isoformat()} | message
        self.messages.append(message)
        self.shown.append(message)


def _calls(calls: Sequence[ToolCall], requestor: str, number: int) -> dict[str, Any]:
    """The calls of a message in tau2's form, each with an id that its result repeats."""
    if not calls:
        return {}
    return {
        "tool_calls": [
            {
                "id": f"call_{number}_{index}",
                "name": call.name,
                "arguments": json.loads(json.dumps(call.arguments)),
                "requestor": requestor,
            }
            for index, call in enumerate(calls)
        ]
    }


def _concerns_user(message: dict[str, Any]) -> bool:
    if message["role"] == "tool":
        return message["requestor"] == "user"
    return message["role"] == "user" or not message.get("tool_calls")
