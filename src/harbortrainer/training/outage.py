"""A server that goes away: wait for it and restore the newest state, or stop the run without waiting."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.policy import PolicyTrainer, SavedState, free_slots
from harbortrainer.config import RunSettings
from harbortrainer.errors import BackendError, ServerLost, WeightsGone
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.run.checkpoints import CheckpointLog
from harbortrainer.stopping import Stop, Stopped
from harbortrainer.watch.display import Display

MAX_LOSSES = 3  # in a row at one step: then a restart of the server is not the cause
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.5, 30.0
ANSWER_LIMIT_SEC = 20.0  # for the server to answer once the run is to stop


@dataclass(slots=True)
class Outage:
    """Restores the policy after a lost server; `save_at_end` and `gone_at_stop` never wait for an absent server."""

    policy: PolicyTrainer
    sampler: PolicySampler
    checkpoints: CheckpointLog
    display: Display
    stop: Stop
    limit_sec: float  # how long the server may stay away
    lost: bool = False  # from a call that failed with the server until a state is restored
    _furthest: int = -1  # the last step at which the server was lost
    _losses: int = 0  # in a row at that step

    async def restore(self, error: ServerLost, step: int) -> int:
        """Restore the newest state once the server answers. Returns its step.

        Raises BackendError when the server stays away for too long or is lost again and again.
        """
        self._losses = 1 if step > self._furthest else self._losses + 1
        self._furthest = max(step, self._furthest)
        if self._losses > MAX_LOSSES:
            raise error
        self.display.say(f"{error}; {self._next()} as soon as the server answers")
        await self.sampler.abandon()
        began = time.monotonic()
        await self._until_reloaded(began)
        await delete_orphans(self.policy, self.checkpoints)
        checkpoint = self.checkpoints.latest()
        what = checkpoint.path if checkpoint else f"the adapter from {self.policy.origin}"
        self.display.say(f"restored {what} after {time.monotonic() - began:.0f} s")
        self.lost = False
        return checkpoint.step if checkpoint else 0

    async def _until_reloaded(self, began: float) -> None:
        pause = FIRST_PAUSE_SEC
        while True:
            left = self.limit_sec - (time.monotonic() - began)
            await self.policy.until_answering(max(0.0, left))
            try:
                return await self._reload()
            except ServerLost as error:  # the server answers before it can work
                if left <= 0:
                    raise BackendError(f"{error}; continue with resume=RUN_DIR when the server works") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SEC)

    async def _reload(self) -> None:
        """Load the newest state that the server still has, else what the run started from."""

        async def reload(path: str) -> PolicyTrainer:
            await self.policy.reload(path)
            return self.policy

        def lost(text: str) -> None:
            self.display.say(f"{text}; {self._next()} instead")

        if await _newest(self.checkpoints, reload, lost) is None:
            await self.policy.reload(None)

    def _next(self) -> str:
        checkpoint = self.checkpoints.latest()
        if checkpoint is not None:
            return f"step {checkpoint.step} is restored"
        return (
            f"no saved state is left: training restarts from {self.policy.origin} and repeats all updates from the "
            "trials on disk"
        )

    async def gone_at_stop(self) -> NoReturn:
        """Get an end for `run_until`: raises Stopped when the run is asked to stop and the server does not answer."""
        try:
            await self.stop.stopped()
        except Stopped:
            if await self._answers():
                await asyncio.Event().wait()
            self.lost = True
            raise

    async def save_at_end(self, step: int, save: Callable[[], Awaitable[None]]) -> None:
        """Save a checkpoint of `step` unless it exists. A server that cannot save costs no trial."""
        await self.sampler.abandon()
        latest = self.checkpoints.latest()
        if latest is not None and latest.step == step:
            return
        problem = "the server does not answer"
        if not self.lost and await self._answers():
            try:
                await save()
                return
            except BackendError as error:
                problem = str(error)
        since = f"the updates since step {latest.step}" if latest else "all updates"
        self.display.say(f"no checkpoint: {problem}; a resume repeats {since} from the trials on disk")

    async def _answers(self) -> bool:
        try:
            await self.policy.until_answering(ANSWER_LIMIT_SEC)
        except BackendError:
            return False
        return True


async def create_or_restore(
    backend: Backend, config: RunSettings, checkpoints: CheckpointLog, display: Display, start: SavedState | None = None
) -> PolicyTrainer:
    """Return the adapter of this process, from the newest state that the server has, else from `start` or the seed.

    Adapters of killed processes are unloaded first. Later updates are repeated from the trials on disk.
    """
    await free_slots(backend, checkpoints.models())
    restore = functools.partial(PolicyTrainer.restore, backend, config, start=start)
    policy = await _newest(checkpoints, restore, display.say)
    if policy is None:
        policy = await PolicyTrainer.create(backend, config, start)
    checkpoints.note_model(policy.model_id)
    return policy


async def _newest(
    checkpoints: CheckpointLog, restore: Callable[[str], Awaitable[PolicyTrainer]], lost: Callable[[str], None]
) -> PolicyTrainer | None:
    """Restore the newest state that the server has, None without one. `lost` gets a line for each missing state."""
    while (checkpoint := checkpoints.latest()) is not None:
        try:
            return await restore(checkpoint.path)
        except WeightsGone as error:
            checkpoints.drop(checkpoint)
            lost(f"{error}; lost: the state after step {checkpoint.step}")
    return None


async def delete_orphans(policy: PolicyTrainer, checkpoints: CheckpointLog) -> None:
    """Delete what earlier models of this run left on the server without a record; then note the current model."""
    empty = []
    for model in checkpoints.models():
        if model == policy.model_id:
            continue
        deleted = await policy.saved.delete_others(model, checkpoints.paths)
        if deleted is not None and not any(path.startswith(f"tinker://{model}/") for path in checkpoints.paths):
            empty.append(model)
    checkpoints.forget_models(empty)
    checkpoints.note_model(policy.model_id)
