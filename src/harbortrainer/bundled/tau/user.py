"""The user of a conversation: the protocol, one that a model plays (`other_models/users.py`), and a scripted one."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from harbortrainer.bundled.tau.domain import Domain
from harbortrainer.other_models import users

STOP = "###STOP###"
USER_PROMPT = "{guidelines}\n\n<scenario>\n{scenario}\n</scenario>"  # tau2/user/user_simulator.py
_OTHER = {"assistant": "user", "user": "assistant"}  # the agent is the user's other side
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


class TauUser(Protocol):
    """One user for one conversation. Raises UserFault of `other_models/users.py` when it gives no message."""

    @property
    def stats(self) -> dict[str, float]:
        """Its tokens so far, for `Trajectory.stats`."""
        return {}

    async def reply(self, heard: Sequence[Mapping[str, Any]]) -> users.Said:
        """Return the next message. `heard`: the messages so far that the user sees, in tau2's form."""
        ...


NewUser = Callable[[Domain, Any, int], TauUser]  # domain, tau2's task, seed of the trial


class ModelUser(TauUser):
    """A model plays the user, with the guidelines of the domain, the scenario, and its tools."""

    def __init__(self, model: users.User, domain: Domain, task: Any) -> None:
        self._model, self._tools = model, domain.user_schemas
        guidelines = domain.data.guidelines(bool(self._tools))
        self._system = USER_PROMPT.format(guidelines=guidelines, scenario=task.user_scenario)

    @property
    def stats(self) -> dict[str, float]:
        return self._model.stats

    async def reply(self, heard: Sequence[Mapping[str, Any]]) -> users.Said:
        return await self._model.reply([{"role": "system", "content": self._system}, *_flipped(heard)], self._tools)


def _flipped(heard: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The messages as OpenAI's API has them for the user's model. Ids of calls have 9 digits, as some templates ask."""
    ids: dict[str, str] = {}
    for one in heard:
        content = str(one.get("content") or "")
        if one["role"] == "tool":
            yield {"role": "tool", "tool_call_id": ids[one["id"]], "content": content}
            continue
        message: dict[str, Any] = {"role": _OTHER[str(one["role"])], "content": content}
        if calls := one.get("tool_calls"):
            ids |= {call["id"]: f"{len(ids) + number:09d}" for number, call in enumerate(calls)}
            message["tool_calls"] = [_wired(call, ids[call["id"]]) for call in calls]
        yield message


def _wired(call: Mapping[str, Any], id: str) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
    return {"id": id, "type": "function", "function": function}


class ScriptedUser(TauUser):
    """Says its reason and what it knows, agrees to what it is asked to confirm, and stops when nothing is asked.

    It follows no instruction of its scenario: good for tests, no measure of tau-bench.
    """

    def __init__(self, domain: Domain, task: Any, seed: int) -> None:
        given = task.user_scenario.instructions
        self._reason = given if isinstance(given, str) else given.reason_for_call
        self._known = "" if isinstance(given, str) else given.known_info or ""
        self._turns = 0

    async def reply(self, heard: Sequence[Mapping[str, Any]]) -> users.Said:
        self._turns += 1
        asked = str(heard[-1].get("content") or "").lower()
        if self._turns == 1:
            return users.Said(f"{self._reason}\n{self._known}".strip())
        if "?" not in asked or self._turns > MOST_TURNS:
            return users.Said(STOP)
        if any(word in asked for word in _CONFIRMS):
            return users.Said("Yes.")
        return users.Said(self._known or self._reason)
