"""One answer of a policy as ids with log-probabilities, checked; and what a policy that is asked in messages gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import tinker

from harbortrainer.policy.tools import Message, Tool


class SamplingError(Exception):
    """The policy could not be sampled: a fault of the server or the network, never of the policy."""


@dataclass(frozen=True, slots=True)
class Sample:
    tokens_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]  # natural log
    truncated: bool  # stopped by max_tokens
    version: int  # of the weights
    seconds: float


def to_sample(response: tinker.types.SampleResponse, max_tokens: int, version: int, seconds: float) -> Sample:
    """Return the response's only sequence. Raises SamplingError when it cannot be trained on."""
    if len(response.sequences) != 1:
        raise SamplingError(f"the server returned {len(response.sequences)} sequences, not 1")
    sequence = response.sequences[0]
    tokens, logprobs = list(sequence.tokens), sequence.logprobs
    if logprobs is None or len(logprobs) != len(tokens):
        got = "no" if logprobs is None else str(len(logprobs))
        raise SamplingError(f"the server returned {got} logprobs for {len(tokens)} sampled tokens")
    if any(logprob is None or not math.isfinite(logprob) for logprob in logprobs):
        raise SamplingError("the server returned logprobs that are not finite: its weights may be NaN")
    if len(tokens) > max_tokens:
        raise SamplingError(f"the server returned {len(tokens)} tokens, more than max_tokens={max_tokens}")
    return Sample(tuple(tokens), tuple(logprobs), sequence.stop_reason == "length", version, seconds)


@dataclass(frozen=True, slots=True)
class History:
    """The conversation before an answer as messages, for a policy that takes no tokens; declared `tools`."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


@runtime_checkable
class Speaker(Protocol):
    """The policy of one trial that is asked in messages. `lost`: as `Sampler.lost_since` has it."""

    async def speak(self, history: History, params: tinker.types.SamplingParams) -> tinker.types.SampleResponse:
        """Return an answer as the ids of the trial's template, with log-probabilities of 0. Raises SamplingError."""
        ...

    def lost(self, began: float) -> float: ...
