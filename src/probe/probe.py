"""Probe a server, or take the report of a former probe of exactly this server."""

import asyncio
import contextlib
import importlib
import logging
from datetime import UTC, datetime

import httpx
import tinker

from src.backend.sessions import Session
from src.errors import BackendError
from src.probe import cache, checkpoints, losses, optimizer, refusals, sampling, server, snapshots, timing
from src.probe.bench import RANK, Bench
from src.probe.findings import Findings
from src.probe.identity import Identity, identify
from src.probe.report import ServerReport

log = logging.getLogger("harbortrainer")


async def load_or_probe(session: Session, model_name: str, refresh: bool = False) -> ServerReport:
    """The cached report of this start of this server and model, else a probe's (seconds), which is then cached.

    Raises BackendError when the server cannot be measured at all: it vanished, or has no free adapter slot.
    """
    identity = await _identify(session.url)
    known = None if refresh else cache.load(identity.fingerprint, model_name)
    if known is not None:
        return known
    report = await probe(session, model_name)
    try:
        cache.store(report)
    except OSError as error:
        log.warning("the report on %s is not kept: %s", session.url, error)
    return report


async def probe(session: Session, model_name: str) -> ServerReport:
    """Measures everything on throw-away weights of small rank and takes away all that it made, whatever happens.

    Raises BackendError when nothing can be measured: no server, no free adapter slot.
    """
    identity = await _identify(session.url)
    bench, findings = Bench(session, model_name), Findings()
    sdk = logging.getLogger("tinker")
    before = sdk.level
    sdk.setLevel(logging.CRITICAL)  # requests that must fail are part of it
    loading = asyncio.create_task(asyncio.to_thread(importlib.import_module, "transformers"))  # takes seconds
    try:
        bench.rank = min(RANK, identity.server.get("max_lora_rank") or RANK)
        await _measure(bench, identity, findings)
    finally:
        await asyncio.shield(bench.close())
        sdk.setLevel(before)
        await loading
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")
    return ServerReport(
        session.url, model_name, identity.fingerprint, measured_at, findings.to_facts(), tuple(findings.rows)
    )


async def _measure(bench: Bench, identity: Identity, findings: Findings) -> None:
    """Each part may fail alone. One free slot is enough; the parts that need two say so."""
    await findings.section(server.GROUP, lambda: server.measure(bench, identity, findings))
    client = await bench.adapter()
    findings.facts.update(can_sample=False)
    await findings.section(losses.GROUP, lambda: losses.measure(bench, client, findings))
    await findings.section(optimizer.GROUP, lambda: optimizer.measure(bench, client, findings))
    sampler: tinker.SamplingClient | None = None
    with contextlib.suppress(BackendError):
        sampler = await bench.sampler(await bench.published(client, "first"))
    if sampler is None:
        findings.row(sampling.GROUP, "samples with this SDK", "no sampling client", "unusable", "no run is possible")
    else:
        first = sampler
        if not await findings.section(sampling.GROUP, lambda: sampling.measure(bench, client, first, findings)):
            sampler = sampler if findings.facts["can_sample"] else None
    await findings.section(timing.GROUP, lambda: timing.measure(bench, client, sampler, findings))
    if bench.rate and sampler is not None:
        await findings.section(snapshots.GROUP, lambda: snapshots.measure(bench, client, findings))
    if bench.rate:
        await findings.section(checkpoints.GROUP, lambda: checkpoints.measure(bench, client, findings))
    await bench.release(client)
    await findings.section(refusals.GROUP, lambda: refusals.measure(bench, findings))


async def _identify(url: str) -> Identity:
    try:
        return await identify(url)
    except httpx.HTTPError as error:
        raise BackendError(f"{url}: {error or type(error).__name__}; check GET /api/v1/healthz") from None
