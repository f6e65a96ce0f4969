"""Opens what simulates the users of a run; the frozen base model plays them through the run's own server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Unpack

import tinker

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.contract import CALL_LIMIT_SEC
from harbortrainer.config import Config
from harbortrainer.errors import BackendError, UserError
from harbortrainer.model_file import BASE, SCRIPTED, model_of
from harbortrainer.other_models.chat_client import ChatClient, OpenChatClient
from harbortrainer.other_models.users import BaseUsers, Users, endpoint_users
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler, Sample, Sampler, SamplingError, SamplingLimits


@contextlib.asynccontextmanager
async def opened_users(
    config: Config,
    backend: Backend | None,
    sampler: PolicySampler,
    template: ChatTemplate,
    open_endpoint: OpenChatClient = ChatClient,
) -> AsyncIterator[Users | None]:
    """Yield what plays `user`, checked by one request; None = the tasks' own scripts do. Closed with the block.

    `sampler`: of the policy, which waits for the base model's requests too before an update. Raises UserError.
    """
    user = model_of("user", config.user)
    if user is None or user.model == SCRIPTED:
        yield None
        return
    if user.model == BASE:
        if backend is None:
            raise UserError(f"user={BASE}: the base model needs a server, and this command has none")
        client = BaseModelSampler(backend, config.model_name, sampler.companion())
        own = ChatTemplate(template.tokenizer, tool_format=config.tool_format)
        users: Users = BaseUsers(client, own, user.fields)
    else:
        users = endpoint_users(user, config.outage_limit_sec, template, open_endpoint)
    async with contextlib.aclosing(users):
        await users.check()
        yield users


class BaseModelSampler(Sampler):
    """Samples the base model without any adapter. Its client is made again in a new session."""

    def __init__(self, backend: Backend, model_name: str, sampler: PolicySampler) -> None:
        """`sampler`: sends the requests; a companion of the policy's."""
        self._backend, self._model_name, self._sampler = backend, model_name, sampler
        self.powers_of_two = sampler.powers_of_two
        self._client: tinker.SamplingClient | None = None
        self._session: tinker.ServiceClient | None = None  # in which the client was made
        self._opening = asyncio.Lock()

    async def sample(self, prompt_T: Sequence[int], **limits: Unpack[SamplingLimits]) -> Sample:
        """Return one completion of the prompt. Raises SamplingError."""
        try:
            client = await self._ready()
        except BackendError as error:
            raise SamplingError(str(error)) from error
        return await self._sampler.sample_from(client, 0, prompt_T, **limits)

    async def _ready(self) -> tinker.SamplingClient:
        async with self._opening:
            if self._client is None or self._session is not self._backend.service:
                service = self._backend.service
                work = service.create_sampling_client(base_model=self._model_name)
                what = "creating the client of the simulated user"
                self._client = await self._backend.wait(what, work, CALL_LIMIT_SEC)
                self._session = service
            return self._client
