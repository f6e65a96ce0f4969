"""Probe a server, or take the report of a former probe of exactly this server."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import tinker

from harbortrainer.backend.contract import ADAM_SETTINGS, TINKER_DOCUMENTS, Contract, ServerKind
from harbortrainer.backend.sessions import Session
from harbortrainer.errors import BackendError
from harbortrainer.probe import losses, optimizer, sampling
from harbortrainer.probe.report import ProbeFindings, ServerReport, load, store
from harbortrainer.probe.session import RANK, ProbeSession

SERVER = "server"  # a group of rows
IDENTITY_LIMIT_SEC = 10.0
log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """`server`: what healthz of this project's server reports, {} for other servers."""

    fingerprint: str
    server: dict[str, Any]

    @property
    def name(self) -> str:
        if not self.server:
            return "unnamed"
        return f"{self.server.get('name')} on skyrl {self.server.get('skyrl')}"


async def identify(url: str) -> ServerIdentity:
    """From healthz, else from the URL and the API that it describes. Raises httpx.HTTPError without an answer."""
    async with httpx.AsyncClient(timeout=IDENTITY_LIMIT_SEC) as http:
        server = _server(await http.get(f"{url}/api/v1/healthz"))
        if server:
            lasting = {name: value for name, value in server.items() if name != "instance"}
            return ServerIdentity(_hash(json.dumps(lasting, sort_keys=True)), server)
        described = await http.get(f"{url}/openapi.json")
        api = described.text if described.status_code == httpx.codes.OK else ""
        return ServerIdentity(_hash(f"{url}\n{api}"), {})


def _server(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json().get("server")
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def load_or_probe(session: Session, model_name: str, refresh: bool = False) -> ServerReport:
    """The cached report of this start of this server and model, else a probe's (seconds), which is then cached.

    Raises BackendError when the server cannot be measured at all: it vanished, or has no free adapter slot.
    """
    identity = await _identify(session.url)
    known = None if refresh else load(identity.fingerprint, model_name)
    if known is not None:
        return known
    report = await probe(session, model_name)
    try:
        store(report)
    except OSError as error:
        log.warning("the report on %s is not kept: %s", session.url, error)
    return report


async def probe(session: Session, model_name: str) -> ServerReport:
    """Measures everything on throw-away weights of small rank and takes away all that it made, whatever happens.

    Raises BackendError when nothing can be measured: no server, no free adapter slot.
    """
    identity = await _identify(session.url)
    session, findings = ProbeSession(session, model_name), ProbeFindings()
    sdk = logging.getLogger("tinker")
    before = sdk.level
    sdk.setLevel(logging.CRITICAL)  # requests that must fail are part of it
    try:
        session.rank = min(RANK, identity.server.get("max_lora_rank") or RANK)
        await _measure(session, identity, findings)
    finally:
        await asyncio.shield(session.close())
        sdk.setLevel(before)
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")
    return ServerReport(
        session.url, model_name, identity.fingerprint, measured_at, findings.to_facts(), tuple(findings.rows)
    )


async def _measure(session: ProbeSession, identity: ServerIdentity, findings: ProbeFindings) -> None:
    """Each part may fail alone. One free slot is enough; the parts that need two say so."""
    await findings.section(SERVER, lambda: describe(session, identity, findings))
    client = await session.adapter()
    findings.facts.update(can_sample=False)
    await findings.section(losses.GROUP, lambda: losses.measure(session, client, findings))
    await findings.section(optimizer.GROUP, lambda: optimizer.measure(session, client, findings))
    await findings.section(sampling.GROUP, lambda: sampling.measure(session, client, findings))
    if session.rate and findings.facts["can_sample"]:
        await findings.section(sampling.SNAPSHOTS, lambda: sampling.snapshots(session, client, findings))
    await session.release(client)


async def describe(session: ProbeSession, identity: ServerIdentity, findings: ProbeFindings) -> None:
    """Rows of what the server reports. Raises BackendError."""
    server = identity.server
    findings.row(SERVER, "name", identity.name, "info")
    if server:
        findings.row(SERVER, "repairs", ", ".join(server.get("repairs", [])) or "none", "info")
    findings.row(SERVER, "fingerprint", identity.fingerprint, "info")
    findings.row(SERVER, "SDK", f"tinker {tinker.__version__}", "info")
    answer = await session.wait("capabilities", session.rest.get_server_capabilities())
    served = {model.model_name: model.max_context_length for model in answer.supported_models if model.model_name}
    findings.row(SERVER, "models", ", ".join(sorted(served)[:8]) or "none named", "info")
    limit = served.get(session.model_name) or server.get("context_limit")
    note = "" if limit else "context_limit is not checked"
    findings.row(SERVER, "context length", limit or "not reported", "same" if limit else "differs", note)
    alpha = server.get("lora_alpha")
    findings.row(SERVER, "LoRA alpha", alpha if alpha is not None else "not reported", "info")


async def _identify(url: str) -> ServerIdentity:
    try:
        return await identify(url)
    except httpx.HTTPError as error:
        raise BackendError(f"{url}: {error or type(error).__name__}; check GET /api/v1/healthz") from None


async def contract_of(session: Session, kind: ServerKind, model_name: str, say: Callable[[str], None]) -> Contract:
    """What a former probe of this server found, else a probe's now; on Tinker cloud, else its documents.

    Raises BackendError when a self-hosted server cannot be measured.
    """
    url = session.url
    report = await _known(url, model_name)
    if report is None and kind.needs_key:
        return TINKER_DOCUMENTS
    if report is None:
        say(f"measuring what {url} does with throw-away weights; remembered until the server is another one")
        try:
            report = await load_or_probe(session, model_name, refresh=True)
        except httpx.HTTPError as error:
            raise BackendError(f"{url}: gone while it was measured ({error or type(error).__name__})") from error
    return from_report(report)


async def _known(url: str, model_name: str) -> ServerReport | None:
    try:
        return load((await identify(url)).fingerprint, model_name)
    except httpx.HTTPError:
        return None


def from_report(report: ServerReport) -> Contract:
    facts = report.facts
    return Contract(
        source=f"measured {report.measured_at[:16]} (server {report.fingerprint})",
        reduction=facts.reduction,
        losses={name: frozenset(settings) for name, settings in facts.losses.items()},
        adam={name: facts.adam.get(name) for name in ADAM_SETTINGS},
        decays_other_adapters=facts.decays_other_adapters,
        frozen_samplers=_both(facts.frozen_samplers, facts.sampling_keeps_training),
        prompt_logprobs=facts.prompt_logprobs != "refused",
        can_sample=facts.can_sample,
    )


def _both(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True
