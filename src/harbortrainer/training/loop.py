"""The frame of every training loop: to the end, through outages, or to an orderly stop."""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from harbortrainer.backend.policy import PolicyTrainer
from harbortrainer.budget.budget import Budget
from harbortrainer.config import RunSettings
from harbortrainer.errors import ServerLost
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.run.checkpoints import CheckpointLog, PolicyIdentity
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.metrics import MetricsLog
from harbortrainer.stopping import Stop, Stopped, run_until
from harbortrainer.training.outage import Outage
from harbortrainer.training.outside import Outside
from harbortrainer.training.rows import StepRows
from harbortrainer.watch.display import Display


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """The objects that every loop drives. `sampler`: of the run's trials."""

    run: RunDirectory
    policy: PolicyTrainer
    trained: PolicyIdentity
    sampler: PolicySampler
    metrics: MetricsLog
    checkpoints: CheckpointLog
    ledger: Ledger
    display: Display
    stop: Stop
    budget: Budget = field(default_factory=Budget)


class Loop[C: RunSettings](ABC):
    """A loop over steps, from `step` on; the run directory can be resumed at any time."""

    def __init__(self, config: C, parts: LoopParts, step: int) -> None:
        self.config, self.parts, self.step = config, parts, step
        self._rows = StepRows(parts.run, parts.metrics, parts.budget)
        self.outage = Outage(
            parts.policy, parts.sampler, parts.checkpoints, parts.display, parts.stop, config.outage_limit_sec
        )

    @abstractmethod
    async def proceed(self) -> None:
        """Run from `step` to the last step, with the weights that the policy has now."""

    async def completed(self) -> None:
        """Tidy up after the last step."""
        return

    @property
    @abstractmethod
    def done(self) -> str:
        """The last line of a run that is over."""

    @property
    def summaries(self) -> list[str]:
        """Lines for the end of the run."""
        return [self.parts.budget.summary()]

    async def run(self) -> None:
        """Run to the end. Raises Stopped when the run was asked to stop, after saving a checkpoint.

        An update under way is finished first, trials and evaluations are not. A cancellation or a fault ends it at
        once: the last checkpoint and finished trials stay. After a lost server the last checkpoint is restored, and
        later updates are repeated, those on trials from the trials on disk.
        """
        with self.parts.stop.polled():
            try:
                await run_until(self._through_outages(), self.outage.gone_at_stop())
            except Stopped:
                self._rows.keep()
                await self.outage.save_at_end(self.step, self.save)
                raise

    async def _through_outages(self) -> None:
        while True:
            try:
                return await self.proceed()
            except ServerLost as error:
                self.outage.lost = True  # a stop now must not save what a broken step has left on the server
                self.step = await run_until(self.outage.restore(error, self.step), self.parts.stop.stopped())
                await asyncio.to_thread(self.parts.ledger.resumed, self.step)

    async def save(self) -> None:
        """Save a checkpoint of `step`."""
        path = await self.parts.policy.save(self.step)
        checkpoint = self.parts.trained.checkpoint(self.step, path)
        await self.parts.checkpoints.add(checkpoint, self.parts.policy.delete, self._rows.undecided)
        self.parts.display.say(f"checkpoint after step {self.step}: {path}")

    async def finish(self, outside: Outside) -> int:
        """Run to the end, then write the report and the summaries. Exit status: 0 done, else that of the stop."""
        parts, stop, say, status = self.parts, self.parts.stop, self.parts.display.say, 1
        try:
            await self.run()
            await self.completed()
            status = 0
        except Stopped:
            status = stop.status
        finally:
            parts.metrics.close(1 if status == 1 else 0)
            for line in (outside.leave_report(parts.run.path), *self.summaries):
                say(line)
            if status:
                why = f" ({stop.why})" if stop.asked else ""
                say(f"stopped after step {self.step}{why}; continue with: {parts.run.resume}")
        if not status:
            say(self.done)
        return status
