"""The command `serve`: a checkpoint answers chat completions, responses and Anthropic's messages."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.terms import agree
from harbortrainer.config import Config, ServerSettings
from harbortrainer.errors import ServerLost, UserError
from harbortrainer.evaluation.policies import (
    Subject,
    check_renderer,
    common_model,
    find_subject,
    refuse_elsewhere,
    sampled,
)
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.serve.arguments import ServeArgs
from harbortrainer.serve.exchanges import Exchanges
from harbortrainer.setting import settings
from harbortrainer.stopping import Stop, run_until
from harbortrainer.training.outside import Outside
from harbortrainer.training.wiring import wired
from harbortrainer.watch.display import Display

LEAST_KEY = 16  # characters
CONNECTIONS = 1024  # at once
OUTAGE_SEC = 7 * 24 * 3600.0  # a server that stays away longer ends the command


async def serve(args: ServeArgs, outside: Outside | None = None) -> NoReturn:
    """Answer until it is stopped. Raises UserError."""
    outside, display, key = outside or Outside(), Display(), _key(args.key)
    subject = find_subject("checkpoint", args.checkpoint)
    if not subject.needs_server:
        raise UserError(f"checkpoint={args.checkpoint}: no weights; give RUN_DIR, RUN_DIR@STEP or a tinker:// path")
    refuse_elsewhere(subject, args.backend)
    config = _config(args, common_model([subject], args.model_name))
    template = outside.load_template(config.model_name, config.enable_thinking, config.tool_format)
    check_renderer(subject, template.renderer)
    with _listener(args) as listener:
        async with (
            wired(config, template, agree, outside, display, Stop()) as wiring,
            _opened(args, wiring.sampler, template, listener, key) as url,
        ):
            display.say(
                f"{subject.name} answers at {url} as model {args.name} (chat completions, responses, Anthropic's "
                f"messages), temperature {args.temperature:g}, with the key in {args.key}; Ctrl-C stops it"
            )
            await _published(subject, wiring.server, config, wiring.sampler, display.say)


@contextlib.asynccontextmanager
async def _opened(
    args: ServeArgs, sampler: PolicySampler, template: ChatTemplate, listener: socket.socket, key: str
) -> AsyncIterator[str]:
    """Answer clients within the block, with status 503 until weights are published."""
    from harbortrainer.model_api.service import ApiLimits
    from harbortrainer.model_api.service import ModelApi as Service  # a web server, slow to import

    limits: dict[str, Any] = {name: getattr(args, name) for name in ("max_tokens", "temperature", "context_limit")}
    exchanges = Exchanges(lambda: Conversation(sampler, template, **limits), template, args.max_requests)
    async with Service() as service:
        service.open(exchanges, key, ApiLimits(args.name, args.max_requests, CONNECTIONS))
        await service.serve(listener, key)
        yield f"http://{args.host}:{listener.getsockname()[1]}/v1"


async def _published(
    subject: Subject, backend: Backend, config: Config, sampler: PolicySampler, say: Callable[[str], None]
) -> NoReturn:
    """Keep the weights published, also after the server was lost."""
    while True:
        try:
            async with sampled(subject, backend, config) as client:
                sampler.publish(client, 0)
                say("ready")
                await run_until(asyncio.Event().wait(), client.forgotten("serving"), backend.silent("serving"))
        except ServerLost as error:
            sampler.withdraw()
            say(f"{error}; requests get status 503 until it answers")
            await backend.until_answering(OUTAGE_SEC)
            await backend.reopen()


def _key(variable: str) -> str:
    """Raises UserError."""
    key = os.environ.get(variable, "")
    if not key:
        key = os.environ[variable] = secrets.token_urlsafe(24)
        print(f"{variable}={key}  # made now; export the variable to choose one", flush=True)
    if len(key) < LEAST_KEY or not (key.isascii() and key.isprintable()) or " " in key:
        raise UserError(f"key={variable}: its value needs {LEAST_KEY} printable characters or more; export another")
    return key


def _listener(args: ServeArgs) -> socket.socket:
    """Raises UserError."""
    try:
        family = socket.getaddrinfo(args.host, args.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((args.host, args.port), family=family)
    except OSError as error:
        raise UserError(f"port={args.port}: {args.host} cannot be listened on ({error}); choose another") from None


def _config(args: ServeArgs, model_name: str) -> Config:
    """The settings that connecting and restoring read."""
    place = {name: getattr(args, name) for name in settings(ServerSettings)}
    place |= {name: getattr(args, name) for name in ("context_limit", "enable_thinking", "tool_format", "max_tokens")}
    return Config(**place, model_name=model_name, tasks_dir="")
