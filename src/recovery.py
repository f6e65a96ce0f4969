"""A server that is lost in the middle of a run: waited for, and the newest state that it still has restored on it."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable

from src.backend.connect import Backend
from src.backend.policy import PolicyTrainer, free_slots
from src.config import Config
from src.display.display import Display
from src.errors import BackendError, ServerLost, WeightsGone
from src.run.checkpoints import CheckpointLog
from src.tinker_llm import PolicySampler

MAX_LOSSES = 3  # in a row at one step: then it is not the server's restart that loses it
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.5, 30.0


class Recovery:
    """`restore` puts the policy back to the newest state, within `limit_sec` of the server being away."""

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
        """The step to go on from. Raises BackendError: away for too long, lost again and again."""
        self._losses = 1 if step > self._furthest else self._losses + 1
        self._furthest = max(step, self._furthest)
        if self._losses > MAX_LOSSES:
            raise error
        self._display.say(f"{error}; {self._next()} as soon as the server answers")
        await self._sampler.abandon()
        began, pause = time.monotonic(), FIRST_PAUSE_SEC
        while True:
            left = self._limit_sec - (time.monotonic() - began)
            await self._policy.until_answering(max(0.0, left))
            try:
                await self._reload()
                break
            except ServerLost as again:  # it answers before it can work
                if left <= 0:
                    raise BackendError(f"{again}; continue with resume=RUN_DIR when the server works") from again
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SEC)
        await adopt(self._policy, self._checkpoints)
        checkpoint = self._checkpoints.latest()
        what = checkpoint.path if checkpoint else "the adapter as the seed makes it"
        self._display.say(f"restored {what} after {time.monotonic() - began:.0f} s")
        return checkpoint.step if checkpoint else 0

    async def _reload(self) -> None:
        """The newest state that the server still has, else the seed's: the trials on disk lead from there to here."""

        async def again(path: str) -> PolicyTrainer:
            await self._policy.reload(path)
            return self._policy

        def lost(text: str) -> None:
            self._display.say(f"{text}; {self._next()} instead")

        if await _newest(self._checkpoints, again, lost) is None:
            await self._policy.reload(None)

    def _next(self) -> str:
        checkpoint = self._checkpoints.latest()
        if checkpoint is not None:
            return f"step {checkpoint.step} is restored"
        return "no saved state is left: step 0 is made again from the seed, and all updates from the trials on disk"


async def begin(backend: Backend, config: Config, checkpoints: CheckpointLog, display: Display) -> PolicyTrainer:
    """The adapter of a process: from the newest state that the server has, else as the seed makes it.

    Trials on disk lead from there to here. Adapters of processes that were killed give their slots back first.
    """
    await free_slots(backend, checkpoints.models())
    restore = functools.partial(PolicyTrainer.restore, backend, config)
    policy = await _newest(checkpoints, restore, display.say)
    if policy is None:
        policy = await PolicyTrainer.create(backend, config)
    checkpoints.note_model(policy.model_id)
    return policy


async def _newest(
    checkpoints: CheckpointLog, restore: Callable[[str], Awaitable[PolicyTrainer]], lost: Callable[[str], None]
) -> PolicyTrainer | None:
    """From the newest state that the server has, None = from none; `lost` is told of each that it has no more."""
    while (checkpoint := checkpoints.latest()) is not None:
        try:
            return await restore(checkpoint.path)
        except WeightsGone as error:
            checkpoints.drop(checkpoint)
            lost(f"{error}; lost: the state after step {checkpoint.step}")
    return None


async def adopt(policy: PolicyTrainer, checkpoints: CheckpointLog) -> None:
    """Delete what earlier models of this run left on the server and no record names; then note the model of now."""
    empty = []
    for model in checkpoints.models():
        if model == policy.model_id:
            continue
        deleted = await policy.saved.delete_others(model, checkpoints.paths)
        if deleted is not None and not any(record.model == model for record in checkpoints.records):
            empty.append(model)
    checkpoints.forget_models(empty)
    checkpoints.note_model(policy.model_id)
