"""A server that is lost in the middle of a run: waited for, and the last checkpoint restored on it."""

import asyncio
import time

from src.backend.policy import PolicyTrainer
from src.errors import BackendError, ServerLost
from src.run.checkpoints import CheckpointLog
from src.run.display import Display
from src.tinker_llm import PolicySampler

MAX_LOSSES = 3  # in a row at one step: then it is not the server's restart that loses it
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.5, 30.0


class Recovery:
    """`restore` puts the policy back to the last checkpoint, within `limit_sec` of the server being away."""

    def __init__(
        self,
        policy: PolicyTrainer,
        sampler: PolicySampler,
        checkpoints: CheckpointLog,
        display: Display,
        limit_sec: float,
    ) -> None:
        self._policy = policy
        self._sampler = sampler
        self._checkpoints = checkpoints
        self._display = display
        self._limit_sec = limit_sec
        self._furthest = -1  # step at which the server was lost last
        self._losses = 0

    async def restore(self, error: ServerLost, step: int) -> int:
        """The step to go on from. Raises BackendError: no checkpoint, away for too long, lost again and again."""
        self._losses = 1 if step > self._furthest else self._losses + 1
        self._furthest = max(step, self._furthest)
        checkpoint = self._checkpoints.latest()
        if checkpoint is None or self._losses > MAX_LOSSES:
            raise error
        self._display.say(f"{error}; step {checkpoint.step} is restored as soon as the server answers")
        await self._sampler.abandon()
        began, pause = time.monotonic(), FIRST_PAUSE_SEC
        while True:
            left = self._limit_sec - (time.monotonic() - began)
            await self._policy.until_answering(max(0.0, left))
            try:
                await self._policy.reload(checkpoint.path)
                break
            except ServerLost as again:  # it answers before it can work
                if left <= 0:
                    raise BackendError(f"{again}; continue with resume=RUN_DIR when the server works") from again
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SEC)
        self._display.say(f"restored {checkpoint.path} after {time.monotonic() - began:.0f} s")
        return checkpoint.step
