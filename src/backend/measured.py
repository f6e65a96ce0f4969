"""The contract of the server at hand: a probe's, or its documents' where measuring would cost money."""

from collections.abc import Callable

import httpx

from src.backend.contract import ADAM_SETTINGS, TINKER_DOCUMENTS, Contract
from src.backend.kind import ServerKind
from src.backend.sessions import Session
from src.errors import BackendError
from src.probe.probe import identify, load_or_probe
from src.probe.report import ServerReport, load


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
