"""An exchange with a scripted policy behind the run's model API, at a loopback port."""

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harbortrainer.model_api.exchange import Exchange
from harbortrainer.model_api.normal import call
from harbortrainer.model_api.prompts import Prompts
from harbortrainer.model_api.reply import Reply
from harbortrainer.model_api.service import ModelApi
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.sampler import PolicySampler
from tests.support.fakes import Request, ScriptedClient
from tests.support.families import QWEN_TOOLS, chat_of

Script = Callable[[Request], Any] | Sequence[str]
LIMITS = {"max_tokens": 500, "temperature": 1.0, "context_limit": 200_000, "seed": None}


def exchange_of(script: Script, *, prompts: Prompts | None = None, **limits: Any) -> tuple[Exchange, ScriptedClient]:
    """An exchange whose policy answers by `script`, as `ScriptedClient`."""
    prompts = prompts or Prompts(chat_of(QWEN_TOOLS))
    sampler = PolicySampler(attempts=1)
    sampler.publish(client := ScriptedClient(script, prompts.template), 3)
    given = {name: limits.pop(name, value) for name, value in LIMITS.items()}
    return Exchange(Conversation(sampler, prompts.template, **given), prompts, **limits), client


@dataclass
class Served:
    """A trial at http://127.0.0.1:`port`."""

    endpoint: ModelApi
    exchange: Exchange
    client: ScriptedClient
    key: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def listener() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(128)
    made.setblocking(False)
    return made


@contextlib.asynccontextmanager
async def served(script: Script, *, endpoint: ModelApi | None = None, **limits: Any) -> AsyncIterator[Served]:
    """A trial with a listener of its own, at a new endpoint or this one."""
    async with contextlib.AsyncExitStack() as stack:
        endpoint = endpoint or await stack.enter_async_context(ModelApi())
        exchange, client = exchange_of(script, **limits)
        key, made = endpoint.open(exchange), listener()
        port = made.getsockname()[1]
        await endpoint.serve(made, key)
        try:
            yield Served(endpoint, exchange, client, key, port)
        finally:
            await endpoint.close(key)


SYSTEM = {"role": "system", "content": "You work in a shell."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def echo(reply: Reply, **changed: Any) -> dict[str, Any]:
    """The answer as an agent sends it again."""
    calls = [call(one.name, one.arguments) for one in reply.calls]
    return {"role": "assistant", "content": reply.text} | ({"tool_calls": calls} if calls else {}) | changed
