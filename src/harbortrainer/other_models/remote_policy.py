"""A policy behind an OpenAI-compatible endpoint: asked in messages, recorded as the ids of the trainer's template.

Whatever the endpoint does wrong is tried again and is never the policy's: the trial's clock stands still meanwhile, and
a request that gets no answer in time is a fault, after which the trial is replaced. Every attempt is written down with
what it cost.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tinker

from harbortrainer.durable.jsonl import append_line, cut_torn_line, read_lines
from harbortrainer.errors import UserError
from harbortrainer.model_file import ModelFile
from harbortrainer.other_models.chat_client import (
    SMALL,
    ApiAddress,
    ChatClient,
    EndpointError,
    Garbage,
    Passing,
    Spoken,
    estimate,
    spoken,
    usage,
)
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import ContextFull
from harbortrainer.policy.sample import History, SamplingError, Speaker
from harbortrainer.policy.tools import Message, ToolCall, parse_sent, written

CHECKS = 8  # requests, before the first trial
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.5, 30.0
MILLION = 1e6
_FREE = ("status", "ConnectError", "ConnectTimeout")  # of attempts that computed nothing
_FIELDS = {"max_tokens", "temperature", "seed"}
_TOO_LONG = ("context_length_exceeded", "maximum context length", "context window")


class Spent:
    """What all attempts have cost, with those of earlier processes, which are in the file."""

    def __init__(self, file: Path, usd_per_million: Mapping[str, float]) -> None:
        self._file, self._prices = file, usd_per_million
        self.requests = self.failed = self.tokens = 0
        self.usd = 0.0
        self.changed = asyncio.Event()
        cut_torn_line(file)
        for record in read_lines(file):
            self._count(record)

    def note(self, how: str, prompt: int, sampled: int) -> None:
        """Record an attempt: `how` it failed, "" = it did not. Raises DiskFault."""
        record = {"how": how, "prompt_tokens": prompt, "sampled_tokens": sampled}
        append_line(self._file, record, durable=False)
        self._count(record)
        self.changed.set()

    def _count(self, record: Mapping[str, Any]) -> None:
        self.requests += 1
        self.failed += bool(record["how"])
        for kind in ("prompt", "sampled"):
            self.tokens += record[f"{kind}_tokens"]
            self.usd += record[f"{kind}_tokens"] * self._prices.get(kind, 0.0) / MILLION

    def __str__(self) -> str:
        usd = f", {self.usd:.4f} USD" if self._prices else ""
        return f"{self.requests} requests, {self.failed} of them failed, {self.tokens} tokens{usd}"


def address(about: ModelFile) -> ApiAddress:
    return ApiAddress("policy", about.url, about.model, about.key, about.fields)


class RemotePolicy:
    """One for all trials of an evaluation. `spent`: what they have cost."""

    def __init__(self, about: ModelFile, template: ChatTemplate, spent: Spent) -> None:
        """Raises UserError: the variable of the key is not set, or the URL is none."""
        self._endpoint = ChatClient(address(about), patience_sec=0.0, answer_sec=about.answer_sec, says=False)
        self.about, self.template, self.spent = about, template, spent

    def of_trial(self, task: object) -> Speaker:
        return _Trial(self)

    async def check(self) -> None:
        """Send small requests until one is answered. Raises UserError."""
        problem = ""
        for _ in range(CHECKS):
            try:
                await self.attempt(SMALL, {"max_tokens": 16})
                return
            except Passing as error:
                problem = str(error)
            except EndpointError as error:
                problem = str(error)
                break
        raise UserError(
            f"policy: {self.about.url}: {problem}; check url (it ends in /v1 for most), model, key and fields in "
            "the file of the policy"
        )

    async def attempt(self, messages: Sequence[Message], fields: Mapping[str, Any]) -> Spoken:
        """Raises Passing where another attempt is worth it, EndpointError, DiskFault; records what it cost."""
        body = self._endpoint.body(messages, fields)
        prompt, sampled, how = estimate(body), 0, "stopped"  # what is lost may have been computed
        try:
            value = await self._endpoint.once(body)
            prompt, sampled = usage(value, body)
            reply = spoken(value, body)
            how = ""
        except EndpointError as error:
            how = str(error)
            if how.startswith(_FREE):
                prompt = 0
            if isinstance(error, Garbage):
                raise Passing(how) from error
            raise
        finally:
            self.spent.note(how[:200], prompt, sampled)
        return reply

    async def aclose(self) -> None:
        await self._endpoint.aclose()


class _Trial(Speaker):
    """The failed attempts of a trial, during which the trial's clock stands still."""

    def __init__(self, policy: RemotePolicy) -> None:
        self._policy = policy
        self._failed: list[tuple[float, float]] = []  # end and length of attempts and pauses that failed
        self._since: dict[object, float] = {}  # of attempts that run

    def lost(self, began: float) -> float:
        """Return an attempt that runs counts as failed until it is answered: nobody knows yet."""
        now = asyncio.get_running_loop().time()
        running = [now - max(since, began) for since in self._since.values()]
        return sum(seconds for end, seconds in self._failed if end > began) + max(running, default=0.0)

    async def speak(self, history: History, params: tinker.types.SamplingParams) -> tinker.types.SampleResponse:
        """Ask until an answer comes or the caller's time is over. Raises SamplingError, ContextFull."""
        messages, fields = sendable(history.messages), params.model_dump(include=_FIELDS)
        fields |= {"tools": list(history.tools)} if history.tools else {}
        clock, own, pause = asyncio.get_running_loop().time, object(), FIRST_PAUSE_SEC
        while True:
            began = self._since[own] = clock()
            try:
                reply = await self._policy.attempt(messages, fields)
                return self._response(reply, history)
            except Passing as error:
                await asyncio.sleep(max(random.uniform(0, pause), min(error.pause, LONGEST_PAUSE_SEC)))
                self._failed.append((clock(), clock() - began))
                pause = min(2 * pause, LONGEST_PAUSE_SEC)
            except EndpointError as error:
                if any(words in str(error).lower() for words in _TOO_LONG):
                    raise ContextFull(str(error)) from None
                raise SamplingError(f"{self._policy.about.url}: {error}") from error
            finally:
                self._since.pop(own, None)

    def _response(self, reply: Spoken, history: History) -> tinker.types.SampleResponse:
        """The ids that a policy of the template would have sampled for it; every log-probability is 0."""
        template, thoughts = self._policy.template, reply.thinking * self._policy.about.thoughts
        calls = [written(one, template.call_form) for one in calls_of(reply)] if history.tools else []
        tokens = np.array(template.completion("\n".join(filter(None, [reply.text, *calls])), thoughts), np.int32)
        if reply.truncated and len(tokens) > 1:
            tokens = tokens[:-1]  # it did not end its turn
        reason = "length" if reply.truncated else "stop"
        zeros = np.zeros(len(tokens), np.float32)
        one = tinker.types.SampledSequence(stop_reason=reason, sequence_id="", tokens_np=tokens, logprobs_np=zeros)
        return tinker.types.SampleResponse(sequences=[one])


def calls_of(reply: Spoken) -> Sequence[ToolCall]:
    """Return its calls as far as they can be read; one that cannot keeps what was sent, for the parser to refuse."""
    found = parse_sent("", reply.calls, {})
    return found.calls or [ToolCall(str(name), {"arguments": arguments}) for name, arguments in reply.calls]


def sendable(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's form: calls and their results named by ids, in order.

    A result of no call is text of the user.
    """
    sent: list[dict[str, Any]] = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        one: dict[str, Any] = {"role": message["role"], "content": message["content"] or ""}
        if one["role"] == "tool":
            one |= {"tool_call_id": waiting.pop(0)} if waiting else {"role": "user"}
        elif calls := message.get("tool_calls"):
            waiting = [f"call_{place}_{number}" for number in range(len(calls))]
            one["tool_calls"] = [
                {"id": id, "type": "function", "function": _as_text(call["function"])}
                for id, call in zip(waiting, calls, strict=True)
            ]
        sent.append(one)
    return sent


def _as_text(function: Mapping[str, Any]) -> dict[str, str]:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"name": function["name"], "arguments": text}


async def until_spent(spent: Spent, max_usd: float, resume: str) -> NoReturn:
    """Return an end for `stopping.run_until`. Raises UserError once the cap is reached; 0 = none."""
    while True:
        if max_usd and spent.usd >= max_usd:
            raise UserError(f"max_usd={max_usd:g}: {spent}; raise it and continue with: {resume}")
        spent.changed.clear()
        await spent.changed.wait()
