"""Throw-away weights on a server, and what is done with them. Everything made here is taken away again."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable

import httpx
import tinker

from src.backend.faults import SDK_ERRORS, awaited
from src.backend.sessions import Session

RANK, SEED = 4, 1
CALL_LIMIT_SEC = 180.0  # the first call of a shape compiles
HTTP_TIMEOUT_SEC = 15.0

log = logging.getLogger("harbortrainer")


class Bench:
    """`rate`: step of plain gradient descent that raises the summed logprob of TOKENS by about one nat."""

    def __init__(self, session: Session, model_name: str) -> None:
        self.service, self.rest, self.url, self.model_name = session.service, session.rest, session.url, model_name
        self.rank = RANK
        headers = {"X-API-Key": session.key}
        self.http = httpx.AsyncClient(base_url=f"{self.url}/api/v1", timeout=HTTP_TIMEOUT_SEC, headers=headers)
        self.rate = 0.0
        self._run = secrets.token_hex(4)
        self._models: list[str] = []
        self._paths: list[str] = []

    def name(self, label: str) -> str:
        """For a checkpoint; unique to this probe."""
        return f"probe-{self._run}-{label}"

    async def wait[T](self, what: str, work: Awaitable[T], limit_sec: float = CALL_LIMIT_SEC) -> T:
        """Raises BackendError, one line, when the server refuses or does not answer."""
        return await awaited(what, work, limit_sec)

    async def adapter(self) -> tinker.TrainingClient:
        """A fresh adapter, always from the same seed. Raises BackendError."""
        making = self.service.create_lora_training_client(self.model_name, rank=self.rank, seed=SEED)
        client = await self.wait("creating an adapter", making)
        self._models.append(client.model_id)
        return client

    async def published(self, client: tinker.TrainingClient, label: str) -> str:
        """Path of sampler weights."""
        saving = client.save_weights_for_sampler(self.name(label))
        return self._note((await self.wait("save_weights_for_sampler", saving)).path)

    async def sampler(self, path: str) -> tinker.SamplingClient:
        creating = self.service.create_sampling_client(model_path=path)
        return await self.wait("creating a sampling client", creating)

    async def release(self, client: tinker.TrainingClient) -> None:
        """Gives an adapter's slot back."""
        if client.model_id in self._models:
            self._models.remove(client.model_id)
            await self._unload(client.model_id)

    async def close(self) -> None:
        """Unloads the models and deletes the checkpoints that are still there."""
        for path in self._paths:
            try:
                await asyncio.wait_for(self.rest.delete_checkpoint_from_tinker_path(path), HTTP_TIMEOUT_SEC)
            except (TimeoutError, *SDK_ERRORS) as error:
                log.warning("probe: could not delete %s: %s", path, error)
        for model_id in self._models:
            await self._unload(model_id)
        await self.http.aclose()

    async def _unload(self, model_id: str) -> None:
        """Without the SDK, which would ask a failing server for minutes."""
        body = {"model_id": model_id, "type": "unload_model"}
        try:
            promise = (await self.http.post("unload_model", json=body)).raise_for_status().json()
            await self.http.post("retrieve_future", json={"request_id": promise["request_id"]})
        except (httpx.HTTPError, ValueError, KeyError) as error:
            log.warning("probe: could not unload %s: %s", model_id, error or type(error).__name__)

    def _note(self, path: str) -> str:
        """Sampler paths of the stock server lack the part that the SDK's delete wants: noted as it wants them."""
        head, _, name = path.rpartition("/")
        whole = path if head.endswith("weights") else f"{head}/sampler_weights/{name}"
        self._paths.append(whole)
        return path
