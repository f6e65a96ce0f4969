"""Reach a Tinker API: URL and key rules, health, what it serves. Every failure is one line with its fix."""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import httpx
import tinker

from src.backend.contract import Contract, contract_of
from src.backend.faults import awaited
from src.config import Config
from src.errors import UserError

DUMMY_KEY = "tml-self-hosted"  # the SDK wants a key of this form; the self-hosted server checks none
CLOUD_NAME = "the SDK's own URL"
HEALTH_LIMIT_SEC = 10.0
CALL_LIMIT_SEC = 120.0

log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class Backend:
    """A server that answered. `max_context` is None when it does not say."""

    service: tinker.ServiceClient
    contract: Contract
    url: str
    max_context: int | None


async def connect(config: Config) -> Backend:
    """Check URL, key, health and model, in this order. Raises UserError."""
    contract = contract_of(config)
    url = server_url(config)
    key = api_key(contract)
    if url is not None:
        await check_health(url, _url_field(config))
    warn_about_family(config.model_name, contract)
    service = tinker.ServiceClient(base_url=url, api_key=key)
    models = await awaited("server capabilities", service.get_server_capabilities_async(), CALL_LIMIT_SEC)
    served = {m.model_name: m.max_context_length for m in models.supported_models if m.model_name}
    check_model(config, served)
    return Backend(service, contract, url or CLOUD_NAME, served.get(config.model_name))


def server_url(config: Config) -> str | None:
    """URL of the server; None = the SDK's own. Raises UserError when a self-hosted one is not named."""
    if config.backend == "tinker":
        return config.tinker_base_url
    url = config.skyrl_tx_url or os.environ.get("SKYRL_TX_URL")
    if not url:
        raise UserError(
            "skyrl_tx_url: needed with backend=skyrl-tx; give skyrl_tx_url=http://localhost:8000 "
            "or set SKYRL_TX_URL in .env"
        )
    if not url.startswith(("http://", "https://")):
        raise UserError(f"skyrl_tx_url={url}: must start with http:// or https://")
    return url.rstrip("/")


def api_key(contract: Contract) -> str:
    """The key to send. Raises UserError when Tinker cloud's is missing."""
    key = os.environ.get("TINKER_API_KEY", "")
    if not contract.needs_key:
        return DUMMY_KEY
    if not key:
        raise UserError("TINKER_API_KEY: needed with backend=tinker; put it in .env, or train with backend=skyrl-tx")
    if not key.startswith("tml-"):
        raise UserError("TINKER_API_KEY: a Tinker key starts with tml-; check .env")
    return key


async def check_health(url: str, field: str) -> None:
    """GET /api/v1/healthz. Raises UserError when nobody, or somebody else, answers."""
    fix = "start it with scripts/start_skyrl_tx.sh MODEL TP and check GET /api/v1/healthz"
    try:
        async with httpx.AsyncClient(timeout=HEALTH_LIMIT_SEC) as client:
            answer = await client.get(f"{url}/api/v1/healthz")
    except httpx.ConnectError as error:
        raise UserError(f"{field}={url}: connection refused or host unknown ({error}); {fix}") from None
    except httpx.TimeoutException:
        raise UserError(f"{field}={url}: no answer within {HEALTH_LIMIT_SEC:.0f} s; {fix}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UserError(f"{field}={url}: {error or type(error).__name__}; {fix}") from None
    if answer.status_code != httpx.codes.OK:
        raise UserError(f"{field}={url}: no Tinker API there (healthz answered {answer.status_code}); {fix}")


def check_model(config: Config, served: dict[str, int | None]) -> None:
    """The server itself accepts any name and trains its own model: refuse another name here."""
    if served and config.model_name not in served:
        names = ", ".join(sorted(served)[:8])
        if config.backend == "skyrl-tx":
            fix = (
                f"start it with that model (scripts/start_skyrl_tx.sh {config.model_name} TP) or set model_name={names}"
            )
        else:
            fix = "choose one of them, or train on your own server with backend=skyrl-tx"
        raise UserError(f"model_name={config.model_name}: the server serves {names}; {fix}")


def warn_about_family(model_name: str, contract: Contract) -> None:
    """A model outside the families that the server knows may not load there."""
    if contract.families is None:
        return
    name = f"{model_name} {_architecture(model_name)}".lower()
    if not any(family in name for family in contract.families):
        log.warning(
            "model_name=%s: %s knows Qwen3, Llama 3 and DeepSeek-V3 models; if it does not start with this one, "
            "use such a model or backend=tinker",
            model_name,
            contract.name,
        )


def _architecture(model_name: str) -> str:
    path = Path(model_name) / "config.json"
    try:
        return " ".join(json.loads(path.read_text()).get("architectures", []))
    except (OSError, ValueError):
        return ""


def _url_field(config: Config) -> str:
    return "skyrl_tx_url" if config.backend == "skyrl-tx" else "tinker_base_url"
