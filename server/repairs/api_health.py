"""GET /api/v1/healthz says what server this is and what its engine does. Not a repair: it comes with any of them.

`server` never changes while the server runs; `load` is what engine_load counts, absent without it; `memory` is what
fits into the engine's memory, as engine_memory measured it; `sampler` is what computes samples and, with vLLM, the
state of its replicas.
"""

# pyright: reportMissingImports=false
import asyncio
import importlib.metadata
import time
import uuid
from pathlib import Path
from typing import Any

from skyrl.tinker import api

from repairs import code_of, positions
from repairs.api_limits import context_limit, fitting, model_config, model_folder
from repairs.api_load import read_load
from repairs.api_routes import open_endpoint
from repairs.base_weights import base_weights
from repairs.sdk_models import ALPHA

INSTANCE = uuid.uuid4().hex  # a new one with every start
CODE = code_of(Path(__file__).parents[1])  # what is measured of a server holds for this code alone


def load_and_memory() -> tuple[dict[str, Any], dict[str, Any]]:
    """`compiling_seconds`: so far, of the program that the engine compiles now."""
    load = read_load()
    since, found = load.pop("compiling_since", None), load.pop("memory", None) or {}
    return load | ({} if since is None else {"compiling_seconds": time.time() - since}), found


def sampler_kind() -> dict[str, Any]:
    """What computes samples; it does not change while the server runs."""
    wiring = api.app.state.vllm
    if wiring is None:
        return {"kind": "jax", "version": importlib.metadata.version("jax"), "replicas": 1}
    return {"kind": "vllm", "version": wiring.version, "replicas": len(wiring.urls)}


def sampler_state() -> dict[str, Any]:
    """State of each replica of vLLM, and how much of the prompts their prefix caches held; {} for the JAX sampler."""
    if api.app.state.vllm is None:
        return {}
    from repairs import vllm_requests

    return {} if vllm_requests.sampler is None else vllm_requests.sampler.sampling.state()


def apply(repairs: list[str], skyrl: str) -> None:
    kind = sampler_kind()

    async def healthz() -> dict[str, Any]:
        config = api.app.state.engine_config
        weights, (load, found) = await asyncio.to_thread(lambda: (base_weights(model_folder()), load_and_memory()))
        server = {
            "name": "harbortrainer",
            "skyrl": skyrl,
            "repairs": repairs,
            "code": CODE,
            "instance": INSTANCE,
            "base_model": config.base_model,
            "base_weights": weights,
            "max_lora_rank": config.backend_config.get("max_lora_rank", 32),
            "max_lora_adapters": config.backend_config.get("max_lora_adapters", 32),
            "lora_alpha": ALPHA,
            "context_limit": context_limit(),
            "made_for": positions.longest(model_config()),
            "scaled_beyond": positions.scaled_beyond(model_config(), context_limit()),
            "keep_results_mb": api.app.state.keep_results_mb,
            "sampler": kind,
        }
        more = ({"load": load} if load else {}) | ({"memory": found | fitting()} if found else {})
        return {"status": "ok", "server": server, "sampler": kind | sampler_state()} | more

    api.healthz = healthz
    open_endpoint("healthz")
