"""The simulated user of a trial: a model behind an OpenAI-compatible endpoint, or the frozen base model.

A user is part of the environment: it has the same settings in training and in evaluation, nothing that it says is
trained, and its faults are never a reward.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import chz

from harbortrainer.config import SETTINGS, Config, TrialSettings
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import USER_TOKENS
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.endpoint import Endpoint, EndpointError, OpenEndpoint, Place
from harbortrainer.policy.sampler import Sampler, SamplingError
from harbortrainer.policy.tools import Message
from harbortrainer.setting import shown

SCRIPTED, BASE = "scripted", "base"
MOST_TOKENS = 1024  # sampled for one message
FIELDS = ("user_model", "user_url", "user_key", "user_kwargs")


class UserFault(Exception):
    """The simulated user gave no message: a fault of what simulates it, never of the policy; no reward follows."""


class User(Protocol):
    """The user of one trial."""

    @property
    def stats(self) -> dict[str, float]:
        """Its tokens so far, for `Trajectory.stats`."""
        return {}

    async def reply(self, messages: Sequence[Message]) -> str:
        """What the user says next. Raises UserFault.

        `messages`: as the user sees them, with its instructions as system message, the agent's texts in role "user" and
        its own in role "assistant".
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

    async def check(self) -> None:
        """Before anything is spent. Raises UserError when the user cannot be asked."""

    def of_trial(self, seed: int) -> User:
        """The user of one trial. `seed`: of the trial."""
        ...

    async def aclose(self) -> None:
        """At the end of a run."""


def refuse_unused(config: TrialSettings, tasks: Iterable[object]) -> None:
    """Raises UserError when settings describe a user, and no task has one."""
    if any(getattr(task, "has_user", False) for task in tasks):
        return
    for name in FIELDS:
        if (value := getattr(config, name)) != SETTINGS[name].default:
            raise UserError(f"{name}={shown(value)}: no task of tasks_dir talks to a user; leave it out")


def as_trained(config: Config, saved: Mapping[str, Any], tasks: Iterable[object]) -> Config:
    """The settings of an evaluation with the user of the checkpoint's run, unless another one is given.

    `saved`: config.json of that run.
    """
    if config.user_model is not None or not any(getattr(task, "has_user", False) for task in tasks):
        return config
    return chz.replace(config, **{name: saved[name] for name in FIELDS if name in saved})


def endpoint_users(
    config: TrialSettings, template: ChatTemplate, open_endpoint: OpenEndpoint = Endpoint
) -> "EndpointUsers":
    """The users of `user_url`. Raises UserError when the variable of the key is not set."""
    place = Place("user", str(config.user_url), str(config.user_model), config.user_key, config.user_kwargs)
    return EndpointUsers(open_endpoint(place, patience_sec=config.outage_limit_sec), template)


class EndpointUsers(Users):
    """Users that a model behind an endpoint plays."""

    def __init__(self, endpoint: Endpoint, template: ChatTemplate) -> None:
        """`template`: of the policy, whose control strings no user may say."""
        self._endpoint, self._template = endpoint, template

    @property
    def outages(self) -> int:
        return self._endpoint.outages

    async def ready(self) -> None:
        await self._endpoint.ready()

    async def suspect(self) -> None:
        await self._endpoint.suspect()

    async def check(self) -> None:
        await self._endpoint.check()

    def of_trial(self, seed: int) -> User:
        return _OfEndpoint(self._endpoint, self._template, seed)

    async def aclose(self) -> None:
        await self._endpoint.aclose()


class _Counted(User):
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._prompt = self._sampled = 0

    @property
    def stats(self) -> dict[str, float]:
        return dict(zip(USER_TOKENS, (float(self._prompt), float(self._sampled)), strict=True))

    def _said(self, text: str, prompt: int, sampled: int) -> str:
        """The text without control strings. Raises UserFault when nothing is left."""
        self._prompt += prompt
        self._sampled += sampled
        if not (said := self._template.without_special(text).strip()):
            raise UserFault("the user said nothing")
        return said


class _OfEndpoint(_Counted):
    def __init__(self, endpoint: Endpoint, template: ChatTemplate, seed: int) -> None:
        super().__init__(template)
        self._endpoint, self._seed = endpoint, seed

    async def reply(self, messages: Sequence[Message]) -> str:
        fields = {"temperature": 0.0, "max_tokens": MOST_TOKENS, "seed": self._seed % 2**31}
        try:
            spoken = await self._endpoint.chat(messages, **fields)
        except EndpointError as error:
            raise UserFault(f"{self._endpoint.described}: {error}") from error
        return self._said(spoken.text, spoken.prompt_tokens, spoken.sampled_tokens)


class BaseUsers(Users):
    """Users that the frozen base model plays, through a sampler of its own and its own chat template.

    Never the current policy: the environment would move with it, and both may agree on codes.
    """

    def __init__(self, sampler: Sampler, template: ChatTemplate, kwargs: Mapping[str, Any]) -> None:
        """`kwargs`: temperature, max_tokens."""
        self._sampler, self._template, self._kwargs = sampler, template, dict(kwargs)

    def of_trial(self, seed: int) -> User:
        return _OfBase(self._sampler, self._template, self._kwargs, seed)


class _OfBase(_Counted):
    def __init__(self, sampler: Sampler, template: ChatTemplate, kwargs: Mapping[str, Any], seed: int) -> None:
        super().__init__(template)
        self._sampler, self._kwargs, self._seed = sampler, kwargs, seed

    async def reply(self, messages: Sequence[Message]) -> str:
        prompt_T = self._template.first_prompt(messages)
        try:
            sample = await self._sampler.sample(
                prompt_T,
                max_tokens=int(self._kwargs.get("max_tokens", MOST_TOKENS)),
                temperature=float(self._kwargs.get("temperature", 0.0)),
                stop=self._template.stop_token_ids,
                seed=self._seed % 2**31,
            )
        except SamplingError as error:
            raise UserFault(f"user_model={BASE}: {error}") from error
        return self._said(self._template.decode(sample.tokens_T), len(prompt_T), len(sample.tokens_T))
