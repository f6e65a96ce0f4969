"""The simulated user of a conversation: the protocol, and a scripted one that needs no model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harbortrainer.venues.tau.domain import Call, Domain

STOP = "###STOP###"
MOST_TURNS = 8
_CONFIRMS = (
    "confirm",
    "proceed",
    "(yes",
    "yes/no",
    "would you like me to",
    "shall i",
    "is that correct",
    "do you agree",
)


class UserFault(Exception):
    """The user gave no message, through no fault of the policy: its trial has no grade."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A message of the user: text, or calls of its own tools (telecom)."""

    text: str
    calls: tuple[Call, ...] = ()


class User(Protocol):
    """One user for one conversation."""

    async def reply(self, heard: Sequence[Mapping[str, Any]]) -> Reply:
        """The next message. `heard`: the messages so far that the user sees, in tau2's form. Raises UserFault."""
        ...


NewUser = Callable[[Domain, Any, int], User]  # domain, tau2's task, seed of the trial


class ScriptedUser:
    """Says its reason and what it knows, agrees to what it is asked to confirm, and stops when nothing is asked.

    It follows no instruction of its scenario: good for tests, no measure of tau-bench.
    """

    def __init__(self, domain: Domain, task: Any, seed: int) -> None:
        given = task.user_scenario.instructions
        self._reason = given if isinstance(given, str) else given.reason_for_call
        self._known = "" if isinstance(given, str) else given.known_info or ""
        self._turns = 0

    async def reply(self, heard: Sequence[Mapping[str, Any]]) -> Reply:
        self._turns += 1
        asked = str(heard[-1].get("content") or "").lower()
        if self._turns == 1:
            return Reply(f"{self._reason}\n{self._known}".strip())
        if "?" not in asked or self._turns > MOST_TURNS:
            return Reply(STOP)
        if any(word in asked for word in _CONFIRMS):
            return Reply("Yes.")
        return Reply(self._known or self._reason)
