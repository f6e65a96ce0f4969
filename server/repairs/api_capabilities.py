"""The server's context limit is reported.

Upstream: skyrl/tinker/api.py, get_server_capabilities names the model and nothing else.
"""

# pyright: reportMissingImports=false
from typing import Any

from fastapi import Request

from repairs.api_limits import whole_context
from repairs.api_routes import Endpoint, wrap


def with_limits(stock: Endpoint) -> Endpoint:
    async def get_server_capabilities(request: Request) -> dict[str, Any]:
        known = {"max_context_length": whole_context(), "trainable": True, "sampleable": True}
        models = (await stock(request=request)).supported_models
        return {"supported_models": [model.model_dump() | known for model in models]}

    return get_server_capabilities


def apply() -> None:
    wrap("get_server_capabilities", with_limits)
