"""Throw-away weights on a server, and what is done with them. Everything made here is taken away again."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable
from typing import Any

import httpx
import tinker

from src.backend.faults import SDK_ERRORS, awaited
from src.backend.sessions import Session
from src.errors import BackendError

RANK, SEED = 4, 1
CALL_LIMIT_SEC = 180.0  # the first call of a shape compiles
REFUSAL_LIMIT_SEC = 3.0  # the SDK asks again for minutes after some refusals: no longer than this
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

    async def adapter(self, base_model: str | None = None, rank: int | None = None) -> tinker.TrainingClient:
        """A fresh adapter, always from the same seed. Raises BackendError."""
        making = self.service.create_lora_training_client(
            base_model or self.model_name, rank=rank or self.rank, seed=SEED
        )
        return self._keep(await self.wait("creating an adapter", making))

    async def restored(self, path: str, optimizer: bool) -> tinker.TrainingClient:
        """An adapter from a saved state. Raises BackendError."""
        if optimizer:
            making = self.service.create_training_client_from_state_with_optimizer(path)
        else:
            making = self.service.create_training_client_from_state(path)
        return self._keep(await self.wait("restoring an adapter", making))

    async def saved(
        self,
        client: tinker.TrainingClient,
        label: str,
        ttl_seconds: int | None = None,
        limit_sec: float = CALL_LIMIT_SEC,
    ) -> str:
        """Path of a state saved with its optimizer."""
        saving = client.save_state(self.name(label), ttl_seconds=ttl_seconds)
        return self._note((await self.wait("save_state", saving, limit_sec)).path)

    async def published(self, client: tinker.TrainingClient, label: str) -> str:
        """Path of sampler weights."""
        saving = client.save_weights_for_sampler(self.name(label))
        return self._note((await self.wait("save_weights_for_sampler", saving)).path)

    async def sampler(self, path: str) -> tinker.SamplingClient:
        creating = self.service.create_sampling_client(model_path=path)
        return await self.wait("creating a sampling client", creating)

    async def refusal(self, what: str, work: Awaitable[Any], limit_sec: float = REFUSAL_LIMIT_SEC) -> str | None:
        """Why the server refuses; None when it accepts. A server that only fails is asked for `limit_sec`."""
        try:
            await awaited(what, work, limit_sec)
        except BackendError as error:
            return str(error)
        return None

    async def raw(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and answer of one request without the SDK's retries. Raises BackendError when none comes."""
        try:
            answer = await self.http.post(path, json=body)
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise BackendError(f"{path}: {error or type(error).__name__}") from None
        return answer.status_code, found if isinstance(found, dict) else {}

    async def settle(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """`raw`, and the result of what it promises."""
        status, promise = await self.raw(path, body)
        if status != httpx.codes.OK or "request_id" not in promise:
            return status, promise
        return await self.raw("retrieve_future", {"request_id": promise["request_id"]})

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
        try:
            await self.settle("unload_model", {"model_id": model_id, "type": "unload_model"})
        except BackendError as error:
            log.warning("probe: could not unload %s: %s", model_id, error)

    def forget(self, path: str) -> None:
        """A checkpoint that is deleted already."""
        with contextlib.suppress(ValueError):
            self._paths.remove(path)

    def note_model(self, model_id: str) -> None:
        """A model made by a raw request."""
        self._models.append(model_id)

    def note_path(self, path: str) -> None:
        self._note(path)

    def _keep(self, client: tinker.TrainingClient) -> tinker.TrainingClient:
        self._models.append(client.model_id)
        return client

    def _note(self, path: str) -> str:
        """Sampler paths of the stock server lack the part that the SDK's delete wants: noted as it wants them."""
        head, _, name = path.rpartition("/")
        whole = path if head.endswith("weights") else f"{head}/sampler_weights/{name}"
        self._paths.append(whole)
        return path
