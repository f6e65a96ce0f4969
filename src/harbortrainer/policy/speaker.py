"""What a policy that is asked in messages, not in tokens, gets and gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tinker import types

from harbortrainer.policy.tools import Message, Tool


@dataclass(frozen=True, slots=True)
class History:
    """The conversation before an answer as messages, for a policy that takes no tokens; declared `tools`."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


@runtime_checkable
class Speaker(Protocol):
    """The policy of one trial that is asked in messages. `lost`: as `Sampler.lost_since` has it."""

    async def speak(self, history: History, params: types.SamplingParams) -> types.SampleResponse:
        """An answer as the ids of the trial's template, with log-probabilities of 0. Raises SamplingError."""
        ...

    def lost(self, began: float) -> float: ...


class Speaking(Protocol):
    """A policy that is asked in messages."""

    def of_trial(self) -> Speaker: ...
