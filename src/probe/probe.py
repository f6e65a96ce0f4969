"""Probe a server, or take the report of a former probe of exactly this server."""

import tinker

from src.probe import cache
from src.probe.identity import identify
from src.probe.report import ServerReport


async def load_or_probe(
    service: tinker.ServiceClient, url: str, model_name: str, refresh: bool = False
) -> ServerReport:
    """The cached report of this start of this server and model, else a probe's (seconds), which is then cached.

    Raises BackendError when the server cannot be measured at all: it vanished, or has no free adapter slot.
    """
    identity = await identify(url)
    known = None if refresh else cache.load(url, identity.fingerprint, model_name)
    if known is not None:
        return known
    report = await probe(service, url, model_name)
    cache.store(report)
    return report


async def probe(service: tinker.ServiceClient, url: str, model_name: str) -> ServerReport:
    """Measures everything on throw-away weights of small rank and takes away all that it made, whatever happens."""
    raise NotImplementedError
