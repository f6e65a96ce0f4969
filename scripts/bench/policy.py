"""Scripted policies: for our agent a sampling client, for Harbor's own a language model that answers at once."""

import asyncio
import contextlib
import json
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from harbor.llms.base import BaseLLM, LLMResponse

from src.chat_template import ChatTemplate
from src.rollout.without_litellm import without_litellm

with without_litellm():
    from harbor.agents.terminus_2.terminus_2 import Terminus2


TOGETHER_SEC = 300.0  # for all to ask; then those that did are answered


def answer(turn: int, n_commands: int, wait_sec: float) -> str:
    """What the policy says in its turn `turn`, from 0: `n_commands` times a command, then that it is done."""
    commands = [{"keystrokes": "echo hello\n", "duration": wait_sec}] if turn < n_commands else []
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": not commands})


@dataclass(frozen=True)
class Script:
    """What the policy of a trial does: `n_commands` commands, each with `wait_sec`; then it says twice it is done.

    With `turns` below n_commands + 2 it is stopped before. An answer takes it `latency_sec` on average, exponentially
    distributed: trials that end all together start all together.
    """

    n_commands: int
    turns: int
    wait_sec: float = 0.0
    latency_sec: float = 0.0


class ScriptedClient:
    """In place of a `tinker.SamplingClient`: tells the turn from the number of ended turns in the prompt."""

    def __init__(self, template: ChatTemplate, script: Script, together: int = 0) -> None:
        """`together`: first turns are answered when that many have been asked for."""
        self._template = template
        self._script = script
        self._missing = together
        self._chance = random.Random(0)
        self._all_asked = asyncio.Event()

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        turn = prompt.to_ints().count(self._template.turn_end) // 2
        if turn == 0:
            await self._wait_for_all()
        if mean := self._script.latency_sec:
            await asyncio.sleep(self._chance.expovariate(1 / mean))
        text = answer(turn, self._script.n_commands, self._script.wait_sec)
        ids = [*self._template.tokenizer.encode(text, add_special_tokens=False), self._template.turn_end]
        sequence = SimpleNamespace(tokens=ids, logprobs=[-0.1] * len(ids), stop_reason="stop")
        return SimpleNamespace(sequences=[sequence] * num_samples)

    async def _wait_for_all(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._all_asked.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_asked.wait(), TOGETHER_SEC)


class InstantLLM(BaseLLM):
    def __init__(self, n_commands: int, wait_sec: float) -> None:
        super().__init__()
        self._script = n_commands, wait_sec
        self._turn = -1

    async def call(self, prompt: str, **kwargs: Any) -> LLMResponse:
        self._turn += 1
        return LLMResponse(content=answer(self._turn, *self._script))

    def get_model_context_limit(self) -> int:
        return 1_000_000

    def get_model_output_limit(self) -> int | None:
        return None


class InstantTerminus(Terminus2):
    """Harbor's agent as it is, but for its model."""

    def _init_llm(self, **named: Any) -> BaseLLM:  # pyright: ignore[reportIncompatibleMethodOverride]
        return InstantLLM(**named["llm_kwargs"])
