"""Probe a server, or load the report of an earlier probe of the same server; make the trainer's contract of it."""

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import tinker

from harbortrainer.backend.contract import (
    ADAM_SETTINGS,
    KEY_HEADER,
    TINKER_DOCUMENTS,
    Contract,
    ServerKind,
    sampler_name,
)
from harbortrainer.backend.health import about_server, memory_line
from harbortrainer.backend.http import http_client
from harbortrainer.backend.load import look, say_what_compiles
from harbortrainer.backend.sessions import Session
from harbortrainer.errors import BackendError
from harbortrainer.probe import losses, optimizer, promises, sampling
from harbortrainer.probe.report import MEASUREMENT, ProbeFindings, ServerReport, load, store
from harbortrainer.probe.session import RANK, ProbeSession
from harbortrainer.stopping import run_until

SERVER = "server"  # a group of rows
IDENTITY_LIMIT_SEC = 10.0
log = logging.getLogger("harbortrainer")


async def contract_of(session: Session, kind: ServerKind, model_name: str, say: Callable[[str], None]) -> Contract:
    """Return the contract by a cached report, else by a new probe; on Tinker cloud without a report, by its documents.

    Raises BackendError when a self-hosted server cannot be measured.
    """
    sampler, report = "", None
    with contextlib.suppress(BackendError):
        identity = await identify(session.url, session.key)
        sampler, report = sampler_name(identity.server), load(identity.fingerprint, model_name)
    if report is None and kind.needs_key:
        return TINKER_DOCUMENTS
    if report is None:
        say(f"probing {session.url} with a temporary adapter (the result is cached for this version of the server)")
        report = await measured(session, model_name, short=True, say=say)
    facts = report.facts
    frozen, keeps = facts.frozen_samplers, facts.sampling_keeps_training
    return Contract(
        source=f"measured {report.measured_at[:16]} (server {report.fingerprint})",
        reduction=facts.reduction,
        losses={name: frozenset(settings) for name, settings in facts.losses.items()},
        adam={name: facts.adam.get(name) for name in ADAM_SETTINGS},
        frozen_samplers=False if False in (frozen, keeps) else None if None in (frozen, keeps) else True,
        prompt_logprobs=facts.prompt_logprobs != "refused",
        can_sample=facts.can_sample,
        sampler=sampler,
        wrong=facts.wrong,
    )


async def load_or_probe(
    session: Session, model_name: str, refresh: bool = False, say: Callable[[str], None] = log.info
) -> ServerReport:
    """Get the cached whole report of this version of the server and model, else that of a new probe. See `measured`."""
    if not refresh:
        known = load((await identify(session.url, session.key)).fingerprint, model_name)
        if known is not None and not known.short:
            return known
    return await measured(session, model_name, short=False, say=say)


async def measured(session: Session, model_name: str, short: bool, say: Callable[[str], None]) -> ServerReport:
    """Probe, and cache the report. `say` gets a line when the server compiles for long.

    Raises BackendError when the server cannot be measured: it vanished or was started again meanwhile, which leaves no
    report, or has no free adapter slot.
    """
    before = await identify(session.url, session.key)
    compiles = say_what_compiles(functools.partial(look, session.url), say)
    report = await run_until(probe(session, model_name, short, say), compiles)
    after = await identify(session.url, session.key)
    if after.server.get("instance") != before.server.get("instance"):
        raise BackendError(f"{session.url} was started again while it was measured; try again")
    if failed := [f"{row.group}: {row.value}" for row in report.rows if row.what == MEASUREMENT]:
        log.warning("the report on %s is not cached, as parts of it failed: %s", session.url, "; ".join(failed))
        return report
    try:
        store(report)
    except OSError as error:
        log.warning("the report on %s is not cached: %s", session.url, error)
    return report


async def probe(
    session: Session, model_name: str, short: bool = False, say: Callable[[str], None] = log.info
) -> ServerReport:
    """Measure everything on temporary adapters of small rank, which are always removed at the end.

    `short`: of a server that promises the facts, only what confirms them; everything where it does not.
    Raises BackendError when nothing can be measured: no server, no free adapter slot.
    """
    identity = await identify(session.url, session.key)
    work, findings = ProbeSession(session, model_name), ProbeFindings()
    sdk = logging.getLogger("tinker")
    before = sdk.level
    sdk.setLevel(logging.CRITICAL)  # some requests are expected to fail
    try:
        work.rank = min(RANK, identity.server.get("max_lora_rank") or RANK)
        await findings.section(SERVER, lambda: _describe(work, identity, findings))
        confirmed = ProbeFindings()
        short = short and promises.promised(identity.server) and await promises.confirm(work, confirmed, say)
        if short:
            findings.rows += confirmed.rows
            findings.facts |= confirmed.facts
        else:
            await measure_all(work, findings, say)
    finally:
        await asyncio.shield(work.close())
        sdk.setLevel(before)
    return ServerReport(
        session.url,
        model_name,
        identity.fingerprint,
        datetime.now(UTC).isoformat(timespec="seconds"),
        findings.to_facts(),
        tuple(findings.rows),
        short=short,
    )


async def measure_all(session: ProbeSession, findings: ProbeFindings, say: Callable[[str], None] = log.info) -> None:
    """Measure all parts; each may fail alone. One free slot is enough. `say` gets a line before each part.

    Raises BackendError when there is no free slot.
    """
    await session.renew()
    findings.facts.update(can_sample=False)
    for part in (losses, optimizer, sampling):
        say(f"measuring {part.GROUP}")
        await findings.section(part.GROUP, lambda part=part: part.measure(session, findings))
    if session.rate and findings.facts["can_sample"]:
        say(f"measuring {sampling.SNAPSHOTS}")
        await findings.section(sampling.SNAPSHOTS, lambda: sampling.snapshots(session, findings))
    await session.release(session.client)


async def _describe(session: ProbeSession, identity: "ServerIdentity", findings: ProbeFindings) -> None:
    """Rows of what the server reports. Raises BackendError."""
    server = identity.server
    name = f"{server.get('name')} on skyrl {server.get('skyrl')}" if server else "unnamed"
    findings.row(SERVER, "name", name, "info")
    if server:
        repairs = server.get("repairs", [])
        findings.row(SERVER, "repairs", ", ".join(repairs) or "none", "info")
        findings.row(SERVER, "sampler", sampler_name(server) or "not reported", "info")
    findings.row(SERVER, "fingerprint", identity.fingerprint, "info")
    findings.row(SERVER, "SDK", f"tinker {tinker.__version__}", "info")
    answer = await session.wait("capabilities", session.rest.get_server_capabilities())
    served = {model.model_name: model.max_context_length for model in answer.supported_models if model.model_name}
    findings.row(SERVER, "models", ", ".join(sorted(served)[:8]) or "none named", "info")
    limit = served.get(session.model_name) or server.get("context_limit")
    note = "" if limit else "context_limit is not checked"
    if memory := server.get("memory"):
        findings.row(SERVER, "memory", memory_line(memory, limit or 0), "info")
    findings.row(SERVER, "context length", limit or "not reported", "same" if limit else "differs", note)
    alpha = server.get("lora_alpha")
    findings.row(SERVER, "LoRA alpha", "not reported" if alpha is None else alpha, "info")


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's identity. `server`: what healthz of this project's server reports, {} for other servers."""

    fingerprint: str
    server: dict[str, Any]


async def identify(url: str, key: str = "") -> ServerIdentity:
    """Identify a server by healthz, else by its URL and API description. Raises BackendError without an answer."""
    try:
        async with http_client(IDENTITY_LIMIT_SEC) as http:
            server = _server(await http.get(f"{url}/api/v1/healthz"))
            text = json.dumps(
                {name: server[name] for name in server if name not in ("instance", "memory")}, sort_keys=True
            )
            if not server:
                described = await http.get(f"{url}/openapi.json", headers={KEY_HEADER: key} if key else None)
                text = f"{url}\n{described.text if described.status_code == httpx.codes.OK else ''}"
    except httpx.HTTPError as error:
        raise BackendError(f"{url}: {error or type(error).__name__}; check GET /api/v1/healthz") from None
    return ServerIdentity(hashlib.sha256(text.encode()).hexdigest()[:16], server)


def _server(answer: httpx.Response) -> dict[str, Any]:
    try:
        return about_server(answer.json())
    except (ValueError, AttributeError):
        return {}
