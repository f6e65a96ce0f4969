"""Connects to a Tinker API: checks URL, key, health and model. Every failure is one line with its fix."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import tinker

from harbortrainer.backend.contract import (
    CALL_LIMIT_SEC,
    CLOSE_LIMIT_SEC,
    KEY_HEADER,
    CallLimits,
    Contract,
    ServerKind,
    kind_of,
)
from harbortrainer.backend.failing import first_contact
from harbortrainer.backend.faults import awaited
from harbortrainer.backend.health import check_health, memory_line, silent, until_answering, watched
from harbortrainer.backend.http import http_client
from harbortrainer.backend.load import Load, look
from harbortrainer.backend.sessions import (
    Session,
    api_key,
    end_session,
    new_service,
    open_rest,
    open_session,
    self_hosted_key,
)
from harbortrainer.backend.terms import context_problem
from harbortrainer.config import RunSettings, ServerSettings
from harbortrainer.errors import UserError
from harbortrainer.policy.chat_template import BaseModel, read_base_model
from harbortrainer.policy.silence import Silences
from harbortrainer.setting import url_problem
from harbortrainer.stopping import End, in_daemon_thread

CLOUD_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"  # the SDK's own

Say = Callable[[str], None]
Measure = Callable[[Session, ServerKind, str, Say], Awaitable[Contract]]
_log = logging.getLogger("harbortrainer")


class Api:
    """Every request outside the SDK's clients; a test passes one of its own, so that nothing leaves the process."""

    check_health = staticmethod(check_health)
    until_answering = staticmethod(until_answering)
    load = staticmethod(look)
    rest = staticmethod(open_rest)
    session = staticmethod(open_session)
    base_model = staticmethod(read_base_model)

    async def service(self, url: str, key: str) -> tinker.ServiceClient:
        """Return a client with an open session, to replace one that was lost."""
        return await in_daemon_thread(new_service, url, key)

    async def unload(self, url: str, model_ids: Sequence[str]) -> None:
        """Unload adapters from a self-hosted server; unknown ones are ignored."""
        try:
            headers = {KEY_HEADER: self_hosted_key()}
            async with http_client(CLOSE_LIMIT_SEC, headers) as client:
                for model_id in model_ids:
                    body = {"model_id": model_id, "type": "unload_model"}
                    await client.post(f"{url}/api/v1/unload_model", json=body)
        except httpx.HTTPError:
            return  # the server is down, and the slots with it; or it frees them after its session time-out


@dataclass(slots=True)
class Backend:
    """A server that answered. `max_context`: tokens; None = not reported. `about`: its report on itself."""

    service: tinker.ServiceClient
    rest: tinker.RestClient
    kind: ServerKind
    contract: Contract
    url: str
    max_context: int | None
    limits: CallLimits
    about: Mapping[str, Any] = field(default_factory=dict)
    api: Api = field(default_factory=Api)
    silences: Silences = field(default_factory=Silences)

    async def wait[T](self, what: str, work: Awaitable[T], limit_sec: float) -> T:
        """Await an SDK call while the server answers. Raises BackendError; ServerLost if restoring may help."""
        return await watched(self.url, what, work, limit_sec, self.limits.silence_sec)

    def silent(self, what: str) -> End:
        """Return an end for `stopping.run_until`: raises ServerLost when the server does not answer any more."""
        return silent(self.url, what, self.limits.silence_sec)

    async def until_answering(self, limit_sec: float) -> None:
        """Wait for the server. Raises BackendError after `limit_sec`."""
        await self.api.until_answering(self.url, limit_sec)

    async def load(self) -> Load:
        """Return what the server reports about its work, {} = nothing; notes whether it answers. Call it every 2 s.

        Tinker cloud is asked only while a request waits.
        """
        idle = self.kind.needs_key and not self.silences.waiting
        load = {} if idle else await self.api.load(self.url)
        if silent := self.silences.looked(load):
            _log.warning(
                "the server was silent for %.0f s; the clocks of trials that waited for it stood still", silent
            )
        return load or {}

    async def reopen(self) -> None:
        """Open a new session and end the old one, which the server may have forgotten. Raises BackendError."""
        await self.close(done=False)
        opening = self.api.service(self.url, api_key(self.kind))
        self.service = await self.wait(f"opening a session at {self.url}", opening, CALL_LIMIT_SEC)

    async def close(self, *, done: bool) -> None:
        """End the session, which frees its adapters; waits at most CLOSE_LIMIT_SEC."""
        await end_session(self.service, done=done)


async def connect(config: RunSettings, measure: Measure, api: Api, say: Say) -> Backend:
    """Check URL, key, health and model, in this order; then get the contract from `measure`. Raises UserError."""
    url = server_url(config)
    api_key(kind_of(config))
    about = await api.check_health(url, config)
    work = _connect(url, about, config, measure, api, say)
    return await first_contact(url, work, about, known=kind_of(config).needs_key)


async def _connect(
    url: str, about: Mapping[str, Any], config: RunSettings, measure: Measure, api: Api, say: Say
) -> Backend:
    kind = kind_of(config)
    key = api_key(kind)
    rest = await api.rest(url, key)
    models = await awaited("server capabilities", rest.get_server_capabilities(), CALL_LIMIT_SEC)
    served = {m.model_name: m.max_context_length for m in models.supported_models if m.model_name}
    check_model(config, served)
    if (made_for := about.get("made_for")) and config.context_limit > made_for:
        text = f"{config.model_name} was made for {made_for} tokens"
        raise UserError(f"context_limit={config.context_limit}: {text}; set context_limit={made_for}")
    if problem := context_problem(config, kind, served.get(config.model_name)):
        raise UserError(problem)
    if config.context_limit <= (needless := about.get("scaled_beyond") or 0):
        text = "context_limit=%d: %s has YaRN, which its card advises against here; start it with %s=%d"
        _log.warning(text, config.context_limit, config.model_name, "SKYRL_TX_CONTEXT_LIMIT", needless)
    if memory := about.get("memory"):
        say(memory_line(memory, config.context_limit))
    if kind.architectures is not None:
        warn_about_model(config, kind, await asyncio.to_thread(api.base_model, config.model_name))
    session, limits = await api.session(rest, url, key, say), CallLimits()
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(end_session, session.service, done=False)
        measuring = measure(session, kind, config.model_name, say)
        contract = await watched(url, "measuring the server", measuring, limits.update_sec, limits.silence_sec)
        undo.pop_all()
    return Backend(
        session.service,
        rest,
        kind,
        contract,
        url=url,
        max_context=served.get(config.model_name),
        limits=limits,
        about=about,
        api=api,
    )


def server_url(config: ServerSettings) -> str:
    """Return URL of the server. Raises UserError when a self-hosted one is missing, or it is not a URL."""
    if config.backend == "tinker":
        url, field = config.tinker_base_url or os.environ.get("TINKER_BASE_URL") or CLOUD_URL, "tinker_base_url"
    else:
        url, field = config.skyrl_tx_url or os.environ.get("SKYRL_TX_URL"), "skyrl_tx_url"
    if not url:
        raise UserError(
            "skyrl_tx_url: needed with backend=skyrl-tx; give skyrl_tx_url=http://localhost:8000 "
            "or set SKYRL_TX_URL in .env"
        )
    if problem := url_problem(url):
        raise UserError(f"{field}={url}: {problem}")
    return url.rstrip("/")


def check_model(config: RunSettings, served: dict[str, int | None]) -> None:
    """Raises UserError unless the server serves the model: it accepts any name, and then trains its own model."""
    if served and config.model_name not in served:
        names = ", ".join(sorted(served)[:8])
        if config.backend == "skyrl-tx":
            start = f"scripts/start_skyrl_tx.sh {config.model_name} TP"
            fix = f"start it with that model ({start}) or set model_name={names}"
        else:
            fix = "choose one of them, or train on your own server with backend=skyrl-tx"
        raise UserError(f"model_name={config.model_name}: the server serves {names}; {fix}")


def warn_about_model(config: RunSettings, kind: ServerKind, model: BaseModel) -> None:
    """Warn about a model that the server may not support."""
    name = config.model_name
    known = not (kind.architectures or set()).isdisjoint(model.architectures)
    if not (known if model.architectures else any(family in name.lower() for family in kind.families)):
        _log.warning(
            "model_name=%s: %s has the Qwen3, Llama 3 and DeepSeek-V3 families; if it does not train this one, "
            "use such a model or backend=tinker",
            name,
            kind.name,
        )
