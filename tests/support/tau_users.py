"""Conversations of telecom whose users a model plays: they call tools of their own."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harbortrainer.backend.users import BaseModelSampler
from harbortrainer.bundled.tau.domain import domain
from harbortrainer.bundled.tau.room import TauRoom
from harbortrainer.bundled.tau.tasks import key_of
from harbortrainer.bundled.tau.venue import VENUE
from harbortrainer.other_models.chat_client import ApiAddress, ChatClient
from harbortrainer.other_models.users import BaseUsers, EndpointUsers
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.tasks.task import Task
from tests.support.chat_server import ChatServer, Reply, calls, chat_server, says
from tests.support.fakes import QWEN3, ScriptedClient, chat_template
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.tau_parts import parts, request
from tests.support.tools import written

CHAT = chat_of(QWEN_TOOLS)
Answers = Callable[[dict[str, Any]], Reply] | Sequence[Reply]


@cache
def telecom() -> list[Task]:
    return load_sources(find_sources("tau:telecom"))


def with_users(answers: Any, users: Any) -> TauRoom:
    """A room whose policy gives these answers."""
    made, _ = parts(answers)
    return VENUE.room(replace(made, users=users))


@asynccontextmanager
async def played(answers: Any, user: Answers) -> AsyncIterator[tuple[TauRoom, ChatServer, EndpointUsers]]:
    """A room whose users an endpoint plays with these answers."""
    async with chat_server(user) as server:
        place = ApiAddress("user", server.url, "a-model")
        users = EndpointUsers(ChatClient(place, patience_sec=20.0, first_pause_sec=0.01), CHAT)
        try:
            yield with_users(answers, users), server, users
        finally:
            await users.aclose()


def turns_of(task: Task) -> list[tuple[bool, list[Any]]]:
    """The task's own actions in turns: (whether the user's, its actions)."""
    actions = domain("telecom").task(key_of(task)[1]).evaluation_criteria.actions or []
    return [(by_user, [*some]) for by_user, some in groupby(actions, key=lambda one: one.requestor == "user")]


def gold_user(task: Task) -> Answers:
    """Calls what the task's own actions have for the user, one call a message, and says so."""
    replies = [says("My phone has a problem.")]
    for by_user, actions in turns_of(task):
        called = [calls((one.name, one.arguments)) for one in actions] if by_user else []
        replies += [*called, says("I did it.")] if by_user else []
    return [*replies, says("###STOP###")]


def gold_agent(task: Task) -> list[str]:
    texts: list[str] = []
    for by_user, actions in turns_of(task):
        texts += ["Do it."] if by_user else [written(CHAT, one.name, one.arguments) for one in actions]
    return [*texts, "Goodbye."]


async def gold_of_telecom(task: Task, folder: Path) -> float | None:
    async with played(gold_agent(task), gold_user(task)) as (room, _, _):
        return (await room.run(request(task, folder))).reward


@asynccontextmanager
async def users_of(server: ChatServer, **options: Any) -> AsyncIterator[EndpointUsers]:
    fields = options.pop("fields", None)
    place = ApiAddress("user", server.url, "a-model", options.pop("key", None), fields)
    options = {"patience_sec": 20.0, "first_pause_sec": 0.01, "longest_pause_sec": 0.05} | options
    users = EndpointUsers(ChatClient(place, **options), chat_of(QWEN_TOOLS))
    try:
        yield users
    finally:
        await users.aclose()


def base_users(
    answers: Any, chat: ChatTemplate | None = None, **kwargs: Any
) -> tuple[BaseUsers, ScriptedClient, PolicySampler]:
    chat = chat or chat_template(QWEN3)
    client = ScriptedClient(answers, chat)
    policy = PolicySampler(attempts=1)
    service = SimpleNamespace(create_sampling_client=lambda base_model: client if base_model == "models/one" else None)

    async def wait(_what: str, work: Any, _limit: float) -> Any:
        return work

    backend: Any = SimpleNamespace(service=service, wait=wait)
    return BaseUsers(BaseModelSampler(backend, "models/one", policy.companion()), chat, kwargs), client, policy
