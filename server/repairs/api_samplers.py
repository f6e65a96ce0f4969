"""A sample that waits remembers which weights its sampler's name meant when it was asked for.

Upstream: skyrl/tinker/api.py, asample queues the name alone. When the sampler is deleted, and other weights are saved
under its name before the sample is computed, the sample is of these. Here engine_samplers and vllm_requests refuse it.
"""

# pyright: reportMissingImports=false
import contextlib
from pathlib import Path
from typing import Any

from skyrl.tinker import api, types

from repairs import shared
from repairs.api_routes import Endpoint, wrap
from repairs.handover import version


def with_version(stock: Endpoint) -> Endpoint:
    async def create_future(
        session: Any, request_type: Any, model_id: Any, request_data: Any, seq_id: Any = None
    ) -> int:
        base = api.app.state.engine_config.checkpoints_base
        if request_type == types.RequestType.SAMPLE and model_id and isinstance(base, Path):
            with contextlib.suppress(FileNotFoundError):  # the answer says that it is gone
                request_data.weights = version(shared.sampler_file(base, model_id, request_data.checkpoint_id))
        return await stock(session, request_type, model_id, request_data, seq_id)

    return create_future


def apply() -> None:
    shared.apply_samples()
    wrap("create_future", with_version)
