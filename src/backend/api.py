"""The calls by which a Tinker API is reached at all, before and beside the SDK's own clients."""

from collections.abc import Callable, Sequence
from typing import Any

import httpx
import tinker

from src.backend import health
from src.backend.base_model import BaseModel, read_base_model
from src.backend.limits import CLOSE_LIMIT_SEC
from src.backend.sessions import Session, new_service, open_rest, open_session
from src.config import Config
from src.daemon_thread import in_daemon_thread


class Api:
    """As httpx's transport: a test hands in one of its own, and nothing leaves the process."""

    async def check_health(self, url: str, config: Config) -> dict[str, Any]:
        """What a server of this project says of itself, {} of others. Raises UserError."""
        return await health.check_health(url, config)

    async def until_answering(self, url: str, limit_sec: float) -> None:
        """Wait for the server. Raises BackendError after `limit_sec`."""
        await health.until_answering(url, limit_sec)

    async def rest(self, url: str, key: str) -> tinker.RestClient:
        """A client without a session. Raises BackendError."""
        return await open_rest(url, key)

    async def session(self, rest: tinker.RestClient, url: str, key: str, say: Callable[[str], None]) -> Session:
        """A new session; those of killed processes of this machine are ended first. Raises BackendError."""
        return await open_session(rest, url, key, say)

    async def service(self, url: str, key: str) -> tinker.ServiceClient:
        """A client with an open session, in place of one that was lost."""
        return await in_daemon_thread(new_service, url, key)

    def base_model(self, name: str) -> BaseModel:
        """What the model's own configuration says. Blocking at the first call for a name."""
        return read_base_model(name)

    async def unload(self, url: str, model_ids: Sequence[str]) -> None:
        """Take adapters off a self-hosted server; those that it does not have are no fault."""
        try:
            async with httpx.AsyncClient(timeout=CLOSE_LIMIT_SEC) as client:
                for model_id in model_ids:
                    body = {"model_id": model_id, "type": "unload_model"}
                    await client.post(f"{url}/api/v1/unload_model", json=body)
        except httpx.HTTPError:
            return  # the server is gone, and the slots with it; or it frees them after its session time-out
