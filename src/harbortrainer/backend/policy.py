"""The trained adapter: creates, updates, publishes, saves, restores and frees it, alike on every Tinker API."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tinker

from harbortrainer.backend.adapter import send_adapter
from harbortrainer.backend.connect import Backend
from harbortrainer.backend.contract import CALL_LIMIT_SEC, kind_of
from harbortrainer.backend.datum import (
    CROSS_ENTROPY,
    all_tokens,
    build_datums,
    check_rate,
    check_step,
    metric_name,
    trained_logprobs,
)
from harbortrainer.backend.faults import forgotten, no_weights, sdk_errors
from harbortrainer.backend.own_loss import OwnLoss
from harbortrainer.backend.saved_weights import SavedWeights
from harbortrainer.backend.sessions import api_key
from harbortrainer.config import RunSettings
from harbortrainer.errors import BackendError, ServerLost, UserError, WeightsGone
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.stopping import End

_log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The result of a step. `logprobs_D`: per sequence N natural logs under the weights before the step; 0 for its
    first token.
    """

    logprobs_D: tuple[np.ndarray, ...]
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class SavedState:
    """A training state on the server that a run takes over. `run`, `step`: where it was saved, None = not known."""

    given: str  # the setting, for messages: init_from=runs/a@3
    path: str  # tinker://MODEL/weights/NAME
    run: str | None = None  # run directory
    step: int | None = None
    optimizer: bool = False  # load Adam's moments too
    folder: str | None = None  # of the adapter that the server gets as `path`, None = the server made the state

    @property
    def described(self) -> str:
        where = "" if self.step is None else f", the state after step {self.step}"
        return f"{self.path} ({self.given}{where})"


class PolicyTrainer:
    """One LoRA adapter on the server.

    On a server without frozen samplers, sampling an older one after a training step silently restores the older
    weights: there publish, sample, train, publish; no sampling request may outlive its batch.
    """

    def __init__(
        self, backend: Backend, client: tinker.TrainingClient, config: RunSettings, start: SavedState | None = None
    ) -> None:
        self._backend = backend
        self._start = start
        self._config = config
        self.frozen_samplers = backend.contract.frozen_samplers is True  # weights may be sampled beside an update
        self.knows_own_ratio = "own_ratio" in backend.about.get("repairs", ())  # `learning/observations.py`
        self._limits = backend.limits
        self._vocab_size = backend.api.base_model(config.model_name).vocab_size
        self._max_context = backend.max_context or backend.kind.context_limit
        self.saved = SavedWeights(backend)
        self._take(client)

    def _take(self, client: tinker.TrainingClient) -> None:
        self._client = client
        self.model_id: str = client.model_id
        self._run = secrets.token_hex(4)  # keeps names unique in a resumed run: saving a name twice hangs
        self._published: Published | None = None
        self._samplers: dict[int, str] = {}  # paths by step, the newest last
        self._steps: float | None = None  # optimizer steps, as the server counts them

    @classmethod
    async def create(cls, backend: Backend, config: RunSettings, start: SavedState | None = None) -> PolicyTrainer:
        """Return a new adapter: with the weights of `start`, else fresh in attention and MLP layers, from the seed.

        Raises UserError when `start` has another model or rank, WeightsGone when the server does not have it,
        BackendError.
        """
        return cls(backend, await _begun(backend, config, start), config, start)

    @classmethod
    async def restore(
        cls, backend: Backend, config: RunSettings, path: str, start: SavedState | None = None
    ) -> PolicyTrainer:
        """Return adapter and optimizer state saved under `path`; `start`: as `create` has it, for `reload`.

        Raises UserError for another model or rank, WeightsGone when the server does not have them, BackendError.
        """
        await check_state(backend, path, config.model_name, config.lora_rank)
        return cls(backend, await restored(backend, path), config, start)

    @property
    def origin(self) -> str:
        """What a run without any checkpoint begins with."""
        return "the seed" if self._start is None else self._start.described

    async def reload(self, path: str | None) -> None:
        """Replace a lost adapter by a saved state, or by a new one as `create` makes it (None).

        Raises WeightsGone when the server does not have the state, BackendError.
        """
        await free_slots(self._backend, [self.model_id])  # a server that was only unreachable still has it
        await self._backend.reopen()
        if path is None:
            self._take(await _begun(self._backend, self._config, self._start))
        else:
            self._take(await restored(self._backend, path))

    async def until_answering(self, limit_sec: float) -> None:
        """Wait for the server. Raises BackendError after `limit_sec`."""
        await self._backend.until_answering(limit_sec)

    async def update(
        self,
        sequences_D: Sequence[TrainingSequence],
        *,
        loss_fn: str,
        loss_fn_config: dict[str, float] | None,
        adam: tinker.AdamParams,
    ) -> UpdateResult:
        """Return one optimizer step on the loss summed over tokens. Submits both requests before it awaits either."""
        datums = await asyncio.to_thread(self._datums, sequences_D, loss_fn)  # trials run meanwhile
        forward = self._client.forward_backward(datums, loss_fn, loss_fn_config)  # pyright: ignore[reportArgumentType]
        return await self._stepped(sequences_D, forward, adam)

    async def update_by(self, own: OwnLoss, adam: tinker.AdamParams) -> UpdateResult:
        """Return one optimizer step on a user's loss of one minibatch: two passes. Raises what the function raised."""
        datums = await asyncio.to_thread(self._datums, own.sequences_D, CROSS_ENTROPY)
        try:
            result = await self._stepped(own.sequences_D, self._client.forward_backward_custom(datums, own), adam)
        except BackendError:
            if own.error is not None:
                raise own.error from None
            raise
        result.metrics.pop("server/surrogate_loss_sum", None)  # of the SDK, without a meaning
        return replace(result, metrics=result.metrics | own.metrics)

    async def _stepped(
        self,
        sequences_D: Sequence[TrainingSequence],
        forward: Awaitable[tinker.types.ForwardBackwardOutput],
        adam: tinker.AdamParams,
    ) -> UpdateResult:
        step = self._client.optim_step(adam)
        output = await self._backend.wait("forward_backward", forward, self._limits.update_sec)
        logprobs_D = tuple(trained_logprobs(s, o) for s, o in zip(sequences_D, output.loss_fn_outputs, strict=True))
        stepped = await self._backend.wait("optim_step", step, self._limits.update_sec)
        reported = {**output.metrics, **(stepped.metrics or {})}
        metrics = {metric_name(name): float(value) for name, value in reported.items()}
        check_rate(adam.learning_rate, metrics)
        self._steps = check_step(self._steps, metrics)
        return UpdateResult(logprobs_D, metrics)

    async def logprobs(self, sequences_D: Sequence[TrainingSequence]) -> list[np.ndarray]:
        """Return per sequence N natural logs of the policy in training, 0 for the first token; changes nothing."""
        datums = await asyncio.to_thread(self._datums, sequences_D, CROSS_ENTROPY)
        work = self._client.forward(datums, CROSS_ENTROPY)
        output = await self._backend.wait("forward", work, self._limits.update_sec)
        return [trained_logprobs(s, o) for s, o in zip(sequences_D, output.loss_fn_outputs, strict=True)]

    async def held_out_logprobs(
        self, sequences_D: Sequence[TrainingSequence], sampler: Published | None
    ) -> list[np.ndarray] | None:
        """Get same under published weights (None = the newest). None: the server gives no logprobs of given tokens."""
        client = (sampler or self.newest()[0]).client
        scored = self._backend.contract.prompt_logprobs
        return await scores(self._backend, client, sequences_D, "held-out trials") if scored else None

    def _datums(self, sequences_D: Sequence[TrainingSequence], loss_fn: str) -> list[tinker.Datum]:
        return build_datums(sequences_D, loss_fn, self._backend.contract, self._vocab_size, self._max_context)

    async def publish(self, step: int) -> Published:
        """Return a sampler of the current weights. Earlier ones stay until `retire`."""
        name = f"sampler-{self._run}-{step:06d}"
        saving = self._client.save_weights_for_sampler(name)
        saved = await self._backend.wait("save_weights_for_sampler", saving, self._limits.update_sec)
        self._samplers.pop(step, None)
        self._samplers[step] = f"tinker://{self.model_id}/sampler_weights/{name}"
        self._published = await self._sampling(saved.path)
        return self._published

    def relabel(self, step: int) -> None:
        """Let the weights published last count as weights of `step` too."""
        self._samplers[step] = [*self._samplers.values()][-1]

    def retire(self, in_use: Collection[int] = ()) -> None:
        """Delete, in the background, the weights of all samplers but the newest and those of the steps `in_use`."""
        for step in [*self._samplers][:-1]:
            if step not in in_use:
                self.discard(self._samplers.pop(step))

    def newest(self) -> tuple[Published, str]:
        """Return the sampler published last, and the path of its weights."""
        assert self._published is not None
        return self._published, [*self._samplers.values()][-1]

    async def sampler_at(self, path: str) -> Published | None:
        """Return a sampler of weights that an earlier process published;

        None when the server does not have them any more.
        """
        return await self._sampling(path) if await self.saved.has(path) else None

    async def _sampling(self, path: str) -> Published:
        creating = self._backend.service.create_sampling_client(model_path=path)
        return Published(await self._backend.wait("creating the sampling client", creating, CALL_LIMIT_SEC))

    def discard(self, path: str) -> None:
        """Delete a sampler's weights in the background, unless a step that is kept has the same."""
        if path not in self._samplers.values():
            self.saved.delete_later(path)

    async def save(self, step: int) -> str:
        """Save weights and optimizer state on the server. Returns their tinker:// path."""
        saving = self._client.save_state(f"state-{self._run}-{step:06d}")
        path = (await self._backend.wait("save_state", saving, self._limits.update_sec)).path
        await self.saved.warn_of_expiry(path)
        return path

    async def delete(self, path: str) -> None:
        """Delete saved weights; missing ones are ignored."""
        await self.saved.delete(path)

    def losses(self, what: str, sampler: Published | None = None) -> list[End]:
        """Return ends for `stopping.run_until`: the server falls silent, or no longer knows the weights of `sampler`.

        `sampler`: None = the one published last.
        """
        sampler = sampler or self._published
        known = [sampler.forgotten(what)] if sampler else []
        return [*known, self._backend.silent(what)]

    async def close(self) -> None:
        """Wait a short time for deletions, and free the adapter's slot on a self-hosted server."""
        await self.saved.close()
        await free_slots(self._backend, [self.model_id])


class Published:
    """A sampling client. `lost` is set when the server no longer knows its weights or session."""

    def __init__(self, client: tinker.SamplingClient) -> None:
        self.client = client
        self.lost = asyncio.Event()

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> tinker.types.SampleResponse:
        """Return the SDK's answer; raises its errors."""
        try:
            return await self.client.sample(prompt, num_samples, sampling_params)
        except sdk_errors() as error:
            if isinstance(error, tinker.NotFoundError) or forgotten(error) or no_weights(error):
                self.lost.set()
            raise

    def portable(self) -> Handle:
        """Return what another machine samples the same weights by."""
        return Handle(self.client.get_sampler_handle())

    async def forgotten(self, what: str) -> NoReturn:
        """Return an end for `stopping.run_until`: raises ServerLost when the server no longer knows these weights."""
        await self.lost.wait()
        raise ServerLost(f"{what}: the server does not know the published weights any more")


@dataclass(frozen=True, slots=True)
class Handle:
    """The SDK's text for a sampler; without a key. It holds the server's URL."""

    text: str

    def open(self, config: RunSettings) -> Published:
        """Open the published weights with the key of this machine. Blocks. Raises UserError without a key."""
        key = api_key(kind_of(config))
        return Published(tinker.SamplingClient.from_sampler_handle(self.text, api_key=key))


async def free_slots(backend: Backend, model_ids: Sequence[str]) -> None:
    """Unload unused adapters from a self-hosted server; unknown ones are ignored."""
    if not backend.kind.needs_key:
        await backend.api.unload(backend.url, model_ids)


async def _begun(backend: Backend, config: RunSettings, start: SavedState | None) -> tinker.TrainingClient:
    """The adapter of a run without checkpoints. A lost `start` is an error: never the seed in its place."""
    if start is None:
        work = backend.service.create_lora_training_client(
            config.model_name,
            config.lora_rank,
            seed=config.seed,
            train_unembed=False,  # Tinker's default is true; skyrl's JAX backend has no such adapter
        )
        return await backend.wait("creating the LoRA adapter", work, backend.limits.update_sec)
    try:
        await check_start(backend, start, config.model_name, config.lora_rank)
        return await restored(backend, start.path, optimizer=start.optimizer)
    except WeightsGone as error:
        raise WeightsGone(f"{start.given}: {error}; give a state that this server has") from error


async def check_start(backend: Backend, start: SavedState, model_name: str, lora_rank: int | None) -> None:
    """`check_state`; sends an adapter that the server does not have."""
    try:
        await check_state(backend, start.path, model_name, lora_rank)
    except WeightsGone:
        if start.folder is None:
            raise
        await send_adapter(backend, start.given, Path(start.folder), start.path, model_name)
        await check_state(backend, start.path, model_name, lora_rank)


async def check_state(backend: Backend, path: str, model_name: str, lora_rank: int | None) -> None:
    """Raises UserError when the state is of another model or rank (None = any), WeightsGone."""
    reading = backend.rest.get_weights_info_by_tinker_path(path)
    info = await about_state(backend, f"reading {path}", reading, CALL_LIMIT_SEC)
    if info.base_model != model_name:
        raise UserError(f"model_name={model_name}: the checkpoint {path} belongs to {info.base_model}")
    if lora_rank is not None and info.lora_rank != lora_rank:
        raise UserError(f"lora_rank={lora_rank}: the checkpoint {path} has rank {info.lora_rank}")


async def restored(backend: Backend, path: str, *, optimizer: bool = True) -> tinker.TrainingClient:
    """Return a new adapter with a saved state. Raises WeightsGone, BackendError."""
    service = backend.service
    if optimizer:
        work = service.create_training_client_from_state_with_optimizer(path)
    else:
        work = service.create_training_client_from_state(path)
    return await about_state(backend, f"restoring {path}", work, backend.limits.update_sec)


async def about_state[T](backend: Backend, what: str, work: Awaitable[T], limit_sec: float) -> T:
    """Await a call for a saved state. Raises WeightsGone when the server answers that it does not have it."""
    try:
        return await backend.wait(what, work, limit_sec)
    except BackendError as error:
        if no_weights(error.__cause__):
            raise WeightsGone(str(error)) from error
        raise


async def scores(
    backend: Backend, client: tinker.SamplingClient, sequences_D: Sequence[TrainingSequence], whose: str
) -> list[np.ndarray]:
    """Return per sequence N natural logs, 0 for the first token. Raises BackendError, ServerLost."""
    calls = [client.compute_logprobs(tinker.ModelInput.from_ints(s.tokens_T.tolist())) for s in sequences_D]
    answers = await backend.wait(f"logprobs of {whose}", asyncio.gather(*calls), backend.limits.update_sec)
    return [all_tokens(answer, len(s.tokens_T)) for answer, s in zip(answers, sequences_D, strict=True)]
