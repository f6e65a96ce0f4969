"""The simulated user of a trial: a model behind an OpenAI-compatible endpoint, or the frozen base model.

A user is part of the environment: it has the same settings in training and in evaluation, nothing that it says is
trained, and its faults are never a reward.
"""

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import chz

from harbortrainer.config import SETTINGS, Config, TrialSettings
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import USER_TOKENS
from harbortrainer.model_file import BASE, ModelFile
from harbortrainer.other_models.chat_client import ApiAddress, ChatClient, EndpointError, OpenChatClient
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import Sampler, SamplingError
from harbortrainer.policy.tools import Message, Parsed, Tool, ToolCall, parse, parse_sent, signatures
from harbortrainer.setting import shown

MOST_TOKENS = 1024  # sampled for one message
MOST_TRIES = 3  # of one message, where the calls in it cannot be read
UNREADABLE = "(a tool call that could not be read)"
OF_AGENTS = ("agent", "agent_kwargs", "agents_dir", "enable_summarize")  # that work in a task's environment


_Answered = tuple[Parsed, int, int]  # of a model, with the tokens of its prompt and of the answer
Answer = Callable[[Sequence[Message], Sequence[Tool]], Awaitable[_Answered]]


class UserFault(Exception):
    """The simulated user gave no message: a fault of what simulates it, never of the policy; no reward follows."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the user. `calls`: of its own tools; beside them the text is not shown to the agent."""

    text: str
    calls: tuple[ToolCall, ...] = ()


class User(Protocol):
    """The user of one trial."""

    @property
    def stats(self) -> dict[str, float]:
        """Its tokens so far, for `Trajectory.stats`."""
        return {}

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Said:
        """Return what the user says or calls next. Raises UserFault.

        `messages`: as the user sees them, with its instructions as system message, the agent's texts in role "user",
        its own in role "assistant" and results of its calls in role "tool". `tools`: of the user, in OpenAI's form.
        """
        ...


class Users(Protocol):
    """What simulates the users of a run, with the words of a venue's service: ready, suspect, outages."""

    @property
    def outages(self) -> int:
        return 0

    async def ready(self) -> None:
        """Return when trials can start. Raises EnvironmentFault when the service stays away."""

    async def suspect(self) -> None:
        """Call it after a fault of a trial: finds out whether the service is away."""

    async def check(self, tools: Sequence[Tool] = ()) -> None:
        """Check before anything is spent.

        Raises UserError when the user cannot be asked, or not with `tools` of its own.
        """

    def of_trial(self, seed: int) -> User:
        """Return the user of one trial. `seed`: of the trial."""
        ...

    async def aclose(self) -> None:
        """Close at the end of a run."""


def refuse_unused(config: TrialSettings, tasks: Iterable[object]) -> None:
    """Raises UserError when settings describe a user and no task has one, or an agent and all tasks are talks."""
    found = {bool(getattr(task, "has_user", False)) for task in tasks}
    why = "no task of tasks_dir talks to a user" if True not in found else "in conversations the policy acts itself"
    names = ("user",) * (True not in found) + OF_AGENTS * (found == {True})
    for name in names:
        if (value := getattr(config, name)) != SETTINGS[name].default:
            raise UserError(f"{name}={shown(value)}: {why}; leave it out")


def as_trained(config: Config, saved: Mapping[str, Any], tasks: Iterable[object]) -> Config:
    """Return the settings of an evaluation with the user of the checkpoint's run, unless another one is given.

    `saved`: that run's configuration, in the words of this version.
    """
    if config.user is not None or not any(getattr(task, "has_user", False) for task in tasks):
        return config
    return chz.replace(config, user=saved.get("user"))


def endpoint_users(
    user: ModelFile, patience_sec: float, template: ChatTemplate, open_endpoint: OpenChatClient = ChatClient
) -> "EndpointUsers":
    """Return the users that a model at a URL plays. Raises UserError when the variable of the key is not set."""
    place = ApiAddress("user", user.url, user.model, user.key, user.fields)
    return EndpointUsers(open_endpoint(place, patience_sec=patience_sec), template)


class EndpointUsers(Users):
    """Users that a model behind an endpoint plays."""

    def __init__(self, endpoint: ChatClient, template: ChatTemplate) -> None:
        """`template`: of the policy, whose control strings no user may say, nor the policy to a user."""
        self._endpoint, self._template = endpoint, template

    @property
    def outages(self) -> int:
        return self._endpoint.outages

    async def ready(self) -> None:
        await self._endpoint.ready()

    async def suspect(self) -> None:
        await self._endpoint.suspect()

    async def check(self, tools: Sequence[Tool] = ()) -> None:
        await self._endpoint.check(**_fields(0, tools))

    def of_trial(self, seed: int) -> User:
        return _Model(self._template, functools.partial(self._answer, seed))

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def _answer(self, seed: int, messages: Sequence[Message], tools: Sequence[Tool]) -> _Answered:
        heard = [{**one, "content": self._template.broken_special(str(one["content"]))} for one in messages]
        try:
            spoken = await self._endpoint.chat(heard, **_fields(seed, tools))
        except EndpointError as error:
            raise UserFault(f"{self._endpoint.described}: {error}") from error
        parsed = parse_sent(spoken.text, spoken.calls, signatures(tools))
        return parsed, spoken.prompt_tokens, spoken.sampled_tokens


class _Model(User):
    """A model: counts its tokens, and asks it again where a call of its tools cannot be read."""

    def __init__(self, template: ChatTemplate, answer: Answer) -> None:
        """`answer`: one of the model to these messages with these tools. Raises UserFault."""
        self._template, self._answer = template, answer
        self._prompt = self._sampled = 0

    @property
    def stats(self) -> dict[str, float]:
        return dict(zip(USER_TOKENS, (float(self._prompt), float(self._sampled)), strict=True))

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Said:
        asked, failure = [*messages], ""
        for _ in range(MOST_TRIES):
            parsed, prompt, sampled = await self._answer(asked, tools)
            self._prompt, self._sampled = self._prompt + prompt, self._sampled + sampled
            if not (failure := parsed.failure):
                return self._said(parsed)
            said = {"role": "assistant", "content": parsed.text.strip() or UNREADABLE}
            asked += [said, {"role": "user", "content": failure}]
        raise UserFault(f"its calls cannot be read, {MOST_TRIES} times: {failure}")

    def _said(self, parsed: Parsed) -> Said:
        """The message without control strings. Raises UserFault when nothing is left."""
        said = self._template.without_special(parsed.text).strip()
        if not said and not parsed.calls:
            raise UserFault("the user said nothing")
        return Said(said, parsed.calls)


def _fields(seed: int, tools: Sequence[Tool]) -> dict[str, Any]:
    """Of a request to an endpoint, where the file's fields do not say."""
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": MOST_TOKENS, "seed": seed % 2**31}
    return fields | ({"tools": [*tools]} if tools else {})


class BaseUsers(Users):
    """Users that the frozen base model plays, through a sampler of its own and its own chat template.

    Never the current policy: the environment would move with it, and both may agree on codes.
    """

    def __init__(self, sampler: Sampler, template: ChatTemplate, kwargs: Mapping[str, Any]) -> None:
        """`kwargs`: temperature, max_tokens."""
        self._sampler, self._template, self._kwargs = sampler, template, dict(kwargs)

    def of_trial(self, seed: int) -> User:
        return _Model(self._template, functools.partial(self._answer, seed))

    async def _answer(self, seed: int, messages: Sequence[Message], tools: Sequence[Tool]) -> _Answered:
        prompt_T = self._template.first_prompt(messages, tools)
        try:
            sample = await self._sampler.sample(
                prompt_T,
                max_tokens=int(self._kwargs.get("max_tokens", MOST_TOKENS)),
                temperature=float(self._kwargs.get("temperature", 0.0)),
                stop=self._template.stop_token_ids,
                seed=seed % 2**31,
            )
        except SamplingError as error:
            raise UserFault(f"user={BASE}: {error}") from error
        text = self._template.answer(sample.tokens_T).text
        parsed = parse(text, self._template.call_form, signatures(tools)) if tools else Parsed(text)
        return parsed, len(prompt_T), len(sample.tokens_T)
