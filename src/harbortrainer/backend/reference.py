"""Weights that no training changes, to compare a policy with: the base model's, or those of a saved state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tinker

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.contract import CALL_LIMIT_SEC
from harbortrainer.backend.policy import SavedState, check_start, free_slots, restored, scores
from harbortrainer.backend.saved_weights import SavedWeights
from harbortrainer.errors import BackendError, ServerLost, WeightsGone
from harbortrainer.learning.datums import TrainingSequence

NAME = "reference"  # of the saved sampler, in a model of its own


class Samplers(Protocol):
    """The record of samplers that were saved of states, so that a later process uses or deletes them."""

    def sampler_of(self, state: str) -> str | None: ...
    def note_model(self, model_id: str) -> None: ...
    def note_sampler(self, state: str, sampler: str) -> None: ...
    def drop_sampler(self, state: str) -> None: ...


class Reference:
    """Scores sequences with fixed weights.

    No API samples a training state. It is loaded once into a temporary adapter and saved for sampling from there; then
    its slot is free again. A sampler that the server has lost is made again from the state.
    """

    def __init__(self, backend: Backend, model_name: str, samplers: Samplers, state: SavedState | None = None) -> None:
        """`state`: None = the base model."""
        self.state = state
        self._backend = backend
        self._model_name = model_name
        self._samplers = samplers
        self._client: tinker.SamplingClient | None = None
        self._session: tinker.ServiceClient | None = None  # in which the client was made
        self._saved = SavedWeights(backend)

    @property
    def name(self) -> str:
        return "the base model" if self.state is None else self.state.given

    async def ready(self) -> tinker.SamplingClient:
        """Return the client, made again after a lost session.

        Raises WeightsGone when the server has neither the sampler nor the state, UserError, BackendError.
        """
        if self._client is None or self._session is not self._backend.service:
            self._session = self._backend.service
            self._client = await self._open()
        return self._client

    async def logprobs(self, sequences_D: Sequence[TrainingSequence]) -> list[np.ndarray]:
        """Return per sequence N natural logs, 0 for the first token. Raises as `ready` does."""
        return await scores(self._backend, await self.ready(), sequences_D, self.name)

    async def delete(self) -> None:
        """Delete the saved sampler from the server."""
        if self.state is not None and (path := self._samplers.sampler_of(self.state.path)) is not None:
            self._samplers.drop_sampler(self.state.path)
            await self._saved.delete(path)

    async def _open(self) -> tinker.SamplingClient:
        if self.state is None:
            return await self._sampling(base_model=self._model_name)
        path = self._samplers.sampler_of(self.state.path)
        if path is not None and not await self._saved.has(path):
            self._samplers.drop_sampler(self.state.path)
            path = None
        return await self._sampling(model_path=path or await self._save(self.state))

    async def _sampling(self, model_path: str | None = None, base_model: str | None = None) -> tinker.SamplingClient:
        work = self._backend.service.create_sampling_client(model_path=model_path, base_model=base_model)
        return await self._backend.wait(f"creating the client of {self.name}", work, CALL_LIMIT_SEC)

    async def _save(self, state: SavedState) -> str:
        """Save the state's weights for sampling. Returns their path."""
        try:
            await check_start(self._backend, state, self._model_name, None)
            client = await restored(self._backend, state.path, optimizer=False)
        except WeightsGone as error:
            raise WeightsGone(f"{state.given}: {error}; give a state that this server has") from error
        except ServerLost:
            raise
        except BackendError as error:  # every adapter slot is taken
            raise BackendError(f"{state.given}: {error}") from error
        self._samplers.note_model(client.model_id)
        try:
            saving = client.save_weights_for_sampler(NAME)
            saved = await self._backend.wait("save_weights_for_sampler", saving, self._backend.limits.update_sec)
        finally:
            await free_slots(self._backend, [client.model_id])
        self._samplers.note_sampler(state.path, f"tinker://{client.model_id}/sampler_weights/{NAME}")
        return saved.path
