"""What an agent gets for a request: the policy's answer, or why there is none."""

from dataclasses import dataclass
from typing import Literal

Reason = Literal["max_turns", "context_length", "timeout", "policy_error", "fault", "closed"]


class Over(Exception):
    """The trial gets no answer any more, or a side call none; `reason`: the trial's stop reason."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason


class Busy(Exception):
    """AT_ONCE samples of this trial are in flight."""


class Unavailable(Exception):
    """No answer now, and perhaps one later."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. `id` names it within the trial; `arguments`: JSON of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the policy answered. `text`: without thoughts and calls; a call that cannot be read stays in it."""

    text: str
    thinking: str
    calls: tuple[Call, ...]
    truncated: bool
    prompt_tokens: int
    sampled_tokens: int
