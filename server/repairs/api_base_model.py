"""Another base model than the one served is refused, at once and with both names.

Upstream: skyrl/tinker/api.py, create_model and create_sampling_session never look at base_model: a model is trained
from another base than its client believes, and a sampler fails only when it is used.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.tinker import api

from repairs.api_routes import Endpoint, bad_request, wrap


def require_served(name: str | None) -> None:
    served = api.app.state.engine_config.base_model
    if name is not None and name != served:
        raise bad_request(f"base_model {name}: this server serves {served}")


def checked(stock: Endpoint) -> Endpoint:
    async def endpoint(request: Any, **others: Any) -> Any:
        require_served(getattr(request, "base_model", None))
        return await stock(request=request, **others)

    return endpoint


def apply() -> None:
    for name in ("create_model", "create_sampling_session", "load_weights", "asample"):
        wrap(name, checked)
