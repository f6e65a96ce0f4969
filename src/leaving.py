"""How a run that is to stop ends: its weights are saved where the server is there, and no absent one is waited for."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from src.backend.policy import PolicyTrainer
from src.display.display import Display
from src.errors import BackendError
from src.race import racing
from src.run.checkpoints import CheckpointLog
from src.stop import Stop, Stopped
from src.tinker_llm import PolicySampler

ANSWER_LIMIT_SEC = 20.0  # for the server to show that it is there, once the run is to stop


class Leaving:
    """`server_lost`: set while the trainer knows that the server is away or without the adapter."""

    def __init__(
        self, stop: Stop, policy: PolicyTrainer, sampler: PolicySampler, checkpoints: CheckpointLog, display: Display
    ) -> None:
        self.server_lost = False
        self._stop = stop
        self._policy = policy
        self._sampler = sampler
        self._checkpoints = checkpoints
        self._display = display

    async def watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`. It is cancelled, and Stopped raised, when the run is to stop and the server does not answer."""
        async with racing(work, self._gone_when_stopped()) as call:
            if not call.done():
                raise Stopped(self._stop.why)
            call.result()

    async def save(self, step: int, save: Callable[[], Awaitable[None]]) -> None:
        """A checkpoint of `step` unless it is there; a server that cannot make one costs no trial."""
        await self._sampler.abandon()
        latest = self._checkpoints.latest()
        if latest is not None and latest.step == step:
            return
        problem = "the server does not answer"
        if not self.server_lost and await self._answers():
            try:
                await save()
                return
            except BackendError as error:
                problem = str(error)
        since = f"the updates since step {latest.step}" if latest else "all updates"
        self._display.say(f"no checkpoint: {problem}; the trials on disk are enough: {since} are made again from them")

    async def _gone_when_stopped(self) -> None:
        """Returns when the run is to stop and the server is away, else never."""
        await self._stop.wait()
        if await self._answers():
            await asyncio.Event().wait()
        self.server_lost = True

    async def _answers(self) -> bool:
        try:
            await self._policy.until_answering(ANSWER_LIMIT_SEC)
        except BackendError:
            return False
        return True
