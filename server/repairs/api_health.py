"""GET /api/v1/healthz says what server this is. Not a repair: it comes with any of them."""

# pyright: reportMissingImports=false
import uuid
from typing import Any

from skyrl.tinker import api

from repairs.api_limits import context_limit
from repairs.api_routes import open_endpoint
from repairs.sdk_models import ALPHA

INSTANCE = uuid.uuid4().hex  # a new one with every start


def apply(repairs: list[str], skyrl: str) -> None:
    async def healthz() -> dict[str, Any]:
        config = api.app.state.engine_config
        server = {
            "name": "harbortrainer",
            "skyrl": skyrl,
            "repairs": repairs,
            "instance": INSTANCE,
            "base_model": config.base_model,
            "max_lora_rank": config.backend_config.get("max_lora_rank", 32),
            "max_lora_adapters": config.backend_config.get("max_lora_adapters", 32),
            "lora_alpha": ALPHA,
            "context_limit": context_limit(),
            "keep_results_mb": api.app.state.keep_results_mb,
        }
        return {"status": "ok", "server": server}

    api.healthz = healthz
    open_endpoint("healthz")
