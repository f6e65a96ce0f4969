"""The adapter that is trained: update, publish, save, restore, free. One code path for every Tinker API."""

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import tinker

from src.backend.base_model import read_base_model
from src.backend.connect import Backend
from src.backend.datum import build_datums
from src.backend.faults import (
    CALL_LIMIT_SEC,
    CLOSE_LIMIT_SEC,
    CREATE_LIMIT_SEC,
    SAVE_LIMIT_SEC,
    SDK_ERRORS,
    UPDATE_LIMIT_SEC,
    plain,
)
from src.backend.health import until_answering, watched, while_answering
from src.config import Config
from src.errors import BackendError, UserError
from src.learning.datums import TrainingSequence

log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """`logprobs_D`: N natural logs a sequence, of the weights before the step; 0 for its first token."""

    logprobs_D: tuple[np.ndarray, ...]
    metrics: dict[str, float]


class PolicyTrainer:
    """One LoRA adapter on the server.

    At most one sampler is live: on the self-hosted server, sampling an older one after a training step puts the older
    weights back, silently. So publish, sample, train, publish; the caller lets no sampling request outlive its batch.
    """

    def __init__(self, backend: Backend, client: tinker.TrainingClient, config: Config) -> None:
        self._backend = backend
        self._client = client
        self._base_model = config.model_name
        self._vocab_size = read_base_model(config.model_name).vocab_size
        self._context_limit = config.context_limit
        self.model_id: str = client.model_id
        self._run = secrets.token_hex(4)  # names stay unique when a run is resumed: saving twice under one name hangs
        self._sampler_path: str | None = None
        self._base: tinker.SamplingClient | None = None
        self._background: set[asyncio.Task[None]] = set()

    @classmethod
    async def create(cls, backend: Backend, config: Config) -> "PolicyTrainer":
        """A fresh adapter of attention and MLP layers, initialised from the seed. Raises BackendError."""
        work = backend.service.create_lora_training_client(
            config.model_name,
            config.lora_rank,
            seed=config.seed,
            train_unembed=False,  # Tinker's default is true, skyrl's JAX backend has no such adapter: neither trains it
        )
        client = await watched(backend.url, "creating the LoRA adapter", work, CREATE_LIMIT_SEC)
        return cls(backend, client, config)

    @classmethod
    async def restore(cls, backend: Backend, config: Config, path: str) -> "PolicyTrainer":
        """Adapter and optimizer state saved under `path`. Raises UserError for another model or rank, BackendError."""
        reading = backend.rest.get_weights_info_by_tinker_path(path)
        info = await watched(backend.url, f"reading {path}", reading, CALL_LIMIT_SEC)
        if info.base_model != config.model_name:
            raise UserError(f"model_name={config.model_name}: the checkpoint {path} belongs to {info.base_model}")
        if info.lora_rank != config.lora_rank:
            raise UserError(f"lora_rank={config.lora_rank}: the checkpoint {path} has rank {info.lora_rank}")
        return cls(backend, await _restored(backend, path), config)

    async def reload(self, path: str) -> None:
        """Go on from a saved state instead, after the server lost the adapter. Raises BackendError."""
        await self._unload()  # a server that only hung still has it
        self._client = await _restored(self._backend, path)
        self.model_id = self._client.model_id
        self._run = secrets.token_hex(4)
        self._sampler_path = self._base = None

    async def until_answering(self, limit_sec: float) -> None:
        """Wait for the server. Raises BackendError after `limit_sec`."""
        await until_answering(self._backend.url, limit_sec)

    async def update(
        self,
        sequences_D: Sequence[TrainingSequence],
        *,
        loss_fn: str,
        loss_fn_config: dict[str, float] | None,
        adam: tinker.AdamParams,
    ) -> UpdateResult:
        """One optimizer step on the loss summed over tokens. Both requests are submitted before either is awaited."""
        datums = build_datums(sequences_D, self._backend.contract, self._vocab_size, self._context_limit)
        forward = self._client.forward_backward(datums, loss_fn, loss_fn_config)  # pyright: ignore[reportArgumentType]
        step = self._client.optim_step(adam)
        output = await self._wait("forward_backward", forward, UPDATE_LIMIT_SEC)
        logprobs_D = tuple(_trained_logprobs(s, o) for s, o in zip(sequences_D, output.loss_fn_outputs, strict=True))
        stepped = await self._wait("optim_step", step, UPDATE_LIMIT_SEC)
        reported = {**output.metrics, **(stepped.metrics or {})}
        metrics = {_metric_name(name): float(value) for name, value in reported.items()}
        _check_rate(adam.learning_rate, metrics)
        return UpdateResult(logprobs_D, metrics)

    async def publish(self, step: int) -> tinker.SamplingClient:
        """A sampler of the current weights; the previous one's weights are deleted and must not be sampled again."""
        name = f"sampler-{self._run}-{step:06d}"
        saving = self._client.save_weights_for_sampler(name)
        saved = await self._wait("save_weights_for_sampler", saving, SAVE_LIMIT_SEC)
        creating = self._backend.service.create_sampling_client(model_path=saved.path)
        client = await self._wait("creating the sampling client", creating, CALL_LIMIT_SEC)
        previous, self._sampler_path = self._sampler_path, f"tinker://{self.model_id}/sampler_weights/{name}"
        if previous is not None:
            self._in_background(previous)
        return client

    async def save(self, step: int) -> str:
        """Weights and optimizer state on the server; returns their tinker:// path."""
        name = f"state-{self._run}-{step:06d}"
        return (await self._wait("save_state", self._client.save_state(name), SAVE_LIMIT_SEC)).path

    async def delete(self, path: str) -> None:
        """Delete saved weights; one that is gone already is no fault."""
        try:
            await asyncio.wait_for(self._backend.rest.delete_checkpoint_from_tinker_path(path), CALL_LIMIT_SEC)
        except tinker.NotFoundError:
            return
        except (TimeoutError, *SDK_ERRORS) as error:
            log.warning("could not delete %s: %s", path, plain(error))

    async def base_logprobs(self, sequences_D: Sequence[TrainingSequence]) -> list[np.ndarray]:
        """Natural logs of the base model for every token, N a sequence, 0 for the first."""
        if self._base is None:
            work = self._backend.service.create_sampling_client(base_model=self._base_model)
            self._base = await self._wait("creating the base model's client", work, CALL_LIMIT_SEC)
        calls = [self._base.compute_logprobs(tinker.ModelInput.from_ints(s.tokens_T.tolist())) for s in sequences_D]
        answers = await self._wait("base model logprobs", _all(calls), UPDATE_LIMIT_SEC)
        return [_all_tokens(answer, len(s.tokens_T)) for answer, s in zip(answers, sequences_D, strict=True)]

    async def while_answering[T](self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Await work that uses the sampler, for as long as the server is there. Raises BackendError."""
        return await while_answering(self._backend.url, what, work)

    async def close(self) -> None:
        """Finish deletions under way and free the adapter's slot on a self-hosted server; never waits long."""
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_LIMIT_SEC)
        await self._unload()

    async def _unload(self) -> None:
        if self._backend.kind.needs_key:
            return
        body = {"model_id": self.model_id, "type": "unload_model"}
        try:
            async with httpx.AsyncClient(timeout=CLOSE_LIMIT_SEC) as client:
                await client.post(f"{self._backend.url}/api/v1/unload_model", json=body)
        except httpx.HTTPError:
            return  # the server is gone, and the slot with it; or it frees it after its session time-out

    async def _wait[T](self, what: str, work: Awaitable[T], limit_sec: float) -> T:
        return await watched(self._backend.url, what, work, limit_sec)

    def _in_background(self, path: str) -> None:
        task = asyncio.create_task(self.delete(path), name=f"delete {path}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _restored(backend: Backend, path: str) -> tinker.TrainingClient:
    work = backend.service.create_training_client_from_state_with_optimizer(path)
    return await watched(backend.url, f"restoring {path}", work, CREATE_LIMIT_SEC)


async def _all[T](futures: Sequence[Awaitable[T]]) -> list[T]:
    """Their results; the requests are under way already."""
    return [await future for future in futures]


def _trained_logprobs(sequence: TrainingSequence, output: Mapping[str, tinker.TensorData]) -> np.ndarray:
    """N natural logs, 0 for the first token. Raises BackendError unless there is a finite one for every other token."""
    values = np.asarray(output["logprobs"].to_numpy(), np.float32).ravel()
    n = len(sequence.tokens_T)
    if len(values) != n - 1:
        raise BackendError(f"forward_backward: {len(values)} logprobs for {n} tokens of {sequence.trial_name}")
    if not np.isfinite(values).all():
        raise BackendError(
            "forward_backward: logprobs that are no numbers: the weights have diverged; resume with a lower "
            "learning_rate"
        )
    return np.concatenate([np.zeros(1, np.float32), values])


def _all_tokens(logprobs: Sequence[float | None], n: int) -> np.ndarray:
    """N logprobs from an answer that leads with None (Tinker) or leaves the first token out (self-hosted)."""
    values = [value for value in logprobs if value is not None]
    if len(values) != n - 1:
        raise BackendError(f"base model logprobs: {len(values)} for {n} tokens")
    return np.array([0.0, *values], np.float32)


def _check_rate(rate: float, metrics: Mapping[str, float]) -> None:
    """Raises BackendError when the server says that it applied another learning rate (a rounded one is the same)."""
    applied = metrics.get("optim/learning_rate_applied", rate)
    if not math.isclose(applied, rate, rel_tol=1e-5, abs_tol=1e-12):
        raise BackendError(
            f"optim_step: the server applied learning_rate={applied:g} instead of {rate:g}; "
            "see what it does with python -m src.doctor"
        )


def _metric_name(name: str) -> str:
    """`optim/grad_norm` for the server's `skyrl.ai/grad_norm`; `server/loss_sum` for `loss:sum`."""
    short = name.rsplit("/", 1)[-1].replace(":", "_")
    return {"grad_norm": "optim/grad_norm", "learning_rate": "optim/learning_rate_applied"}.get(
        short, f"server/{short}"
    )
