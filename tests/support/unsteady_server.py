"""A server in virtual time that is frozen or compiles at given times, and the looks that a run takes at it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from harbortrainer.backend.contract import HEALTH_LIMIT_SEC
from harbortrainer.backend.load import POLL_SEC
from harbortrainer.policy.silence import Silences
from tests.support.fakes import ScriptedClient, chat_template

Times = Sequence[tuple[float, float]]  # begin and end, in seconds from the start


class UnsteadyServer(ScriptedClient):
    """Answers after `answer_sec` of its own time. Frozen, its API answers nothing; while it compiles, the API works.

    `hangs`: the API works, what computes answers does not, and nothing reports it.
    """

    def __init__(
        self, answers: Any, answer_sec: float, *, frozen: Times = (), compiles: Times = (), hangs: Times = ()
    ) -> None:
        super().__init__(answers, chat_template())
        self.answer_sec, self.frozen, self.compiles = answer_sec, frozen, compiles
        self._stops = sorted([*frozen, *compiles, *hangs])
        self._began = asyncio.get_running_loop().time()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        answer = await super().sample(prompt, num_samples, sampling_params)
        due = self.now + self.answer_sec
        for begin, end in self._stops:
            if begin < due and end > self.now:
                due += end - max(begin, self.now)
        await asyncio.sleep(due - self.now)
        return answer

    async def look(self) -> dict[str, float] | None:
        """What GET healthz gives within its limit."""
        end = next((end for begin, end in self.frozen if begin <= self.now < end), self.now)
        await asyncio.sleep(min(end - self.now, HEALTH_LIMIT_SEC))
        if self.now < end:
            return None
        done = sum(end - begin for begin, end in self.compiles if end <= self.now)
        current = [self.now - begin for begin, end in self.compiles if begin <= self.now < end]
        return {"compile_seconds": done} | ({"compiling_seconds": current[0]} if current else {})

    @contextlib.asynccontextmanager
    async def looked_at(self, silences: Silences) -> AsyncIterator[None]:
        async def look_on() -> None:
            while True:
                silences.looked(await self.look())
                await asyncio.sleep(POLL_SEC)

        silences.looked({})  # the run has connected
        looking = asyncio.create_task(look_on())
        try:
            yield
        finally:
            looking.cancel()
