"""GET /api/v1/healthz says what server this is and what its engine does. Not a repair: it comes with any of them.

`server` never changes while the server runs; `load` is what engine_load counts, absent without it.
"""

# pyright: reportMissingImports=false
import asyncio
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from skyrl.tinker import api

from repairs.api_limits import context_limit
from repairs.api_routes import open_endpoint
from repairs.sdk_models import ALPHA

LOAD_FILE = "SKYRL_TX_LOAD_FILE"  # in the environment; engine_load writes the file
INSTANCE = uuid.uuid4().hex  # a new one with every start


def read_load() -> dict[str, Any]:
    """{} until the engine has written it. `compiling_seconds`: so far, of the program that it compiles now."""
    try:
        load = json.loads(Path(os.environ[LOAD_FILE]).read_text())
    except (KeyError, OSError, ValueError):
        return {}
    since = load.pop("compiling_since", None)
    return load | ({} if since is None else {"compiling_seconds": time.time() - since})


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
        load = await asyncio.to_thread(read_load)
        return {"status": "ok", "server": server} | ({"load": load} if load else {})

    api.healthz = healthz
    open_endpoint("healthz")
