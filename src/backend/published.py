"""The sampler of published weights, which tells when the server no longer has them."""

import asyncio
from typing import Any, NoReturn

import tinker

from src.backend.faults import SDK_ERRORS, forgotten, no_weights
from src.errors import ServerLost


class Published:
    """A sampling client whose `lost` is set once the server does not know its weights or session any more."""

    def __init__(self, client: tinker.SamplingClient) -> None:
        self._client = client
        self.lost = asyncio.Event()

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> tinker.types.SampleResponse:
        """The SDK's own, errors included."""
        try:
            return await self._client.sample(prompt, num_samples, sampling_params)
        except SDK_ERRORS as error:
            if isinstance(error, tinker.NotFoundError) or forgotten(error) or no_weights(error):
                self.lost.set()
            raise

    async def forgotten(self, what: str) -> NoReturn:
        """An end for `waiting.unless`: raises ServerLost once the server no longer knows these weights."""
        await self.lost.wait()
        raise ServerLost(f"{what}: the server does not know the published weights any more")
