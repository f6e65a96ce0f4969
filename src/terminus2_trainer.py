"""The loop: sample -> score -> assemble -> update -> publish.

GRPO on Harbor trials. A batch is `batch_size` tasks with `group_size` trials each, sampled from the current weights.
The advantage of a trial is its reward minus its group's mean (or the mean of the others; over the group's standard
deviation on request); every sampled token of the trial carries it. Departures: no critic, no clipping unless the loss
clips (ppo, cispo), KL to the base model only as an advantage penalty and off by default, trials without a grade are
left out (never reward 0), groups with equal rewards teach nothing and may be left out. Strictly on-policy: weights are
published, sampled at once, and trained on; no older sampler is ever used again.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from src.backend.policy import PolicyTrainer
from src.budget.budget import Budget
from src.config import Config
from src.course import Course, evaluation_due
from src.display.display import Display
from src.errors import ServerLost
from src.evaluation.conversations import Conversations
from src.evaluation.in_training import beside, evaluation_row
from src.learning.batch import assemble
from src.learning.trajectory import Trajectory, TrajectoryGroup
from src.leaving import Leaving
from src.recovery import Recovery
from src.rollout.rollouts import Rollouts
from src.rollout.task import Task
from src.run.batch_metrics import batch_metrics
from src.run.breakdown import Breakdown
from src.run.checkpoints import CheckpointLog, Policy
from src.run.directory import RunDirectory, read_json, write_json
from src.run.ledger import Ledger
from src.run.log_ratios import write_log_ratios
from src.run.metrics_log import MetricsLog
from src.run.trajectory_file import read_batch, write_trajectory
from src.run.usage import Usage
from src.stop import Stop, Stopped
from src.tinker_llm import PolicySampler
from src.update import Updater


@dataclass(frozen=True, slots=True)
class Parts:
    """What the trainer drives; wired by `session.py`."""

    policy: PolicyTrainer
    trained: Policy
    sampler: PolicySampler
    rollouts: Rollouts
    metrics: MetricsLog
    checkpoints: CheckpointLog
    ledger: Ledger
    display: Display
    stop: Stop
    conversations: Conversations | None = None  # None = not kept
    budget: Budget = field(default_factory=Budget)


class Terminus2Trainer:
    """Runs the steps from `start_step` to the end of the course and leaves a run directory that can be resumed."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        parts: Parts,
        course: Course,
        held_out: Sequence[Task],
        start_step: int,
    ) -> None:
        self.config = config
        self.run_directory = run
        self.parts = parts
        self.course = course
        self.held_out = list(held_out)
        self._breakdown = Breakdown([*course.train, *held_out])
        self.step = start_step
        self._row: dict[str, float] | None = None  # of a step that is trained on, and not logged yet
        self.recovery = Recovery(parts.policy, parts.sampler, parts.checkpoints, parts.display, config.outage_limit_sec)
        self.leaving = Leaving(parts.stop, parts.policy, parts.sampler, parts.checkpoints, parts.display)

    async def run(self) -> None:
        """Train to the end. Raises Stopped when the run was asked to stop, after a checkpoint of where it is.

        An update under way is finished before that, trials and evaluations are not. Cancelled, or at a fault, it stops
        where it is: the last checkpoint and finished trials stay. A server that is lost is waited for; then the last
        checkpoint is restored and the updates since are made again from the trials on disk.
        """
        with self.parts.stop.heeded():
            try:
                await self.leaving.watched(self._to_the_end())
            except Stopped:
                if self._row is not None:
                    write_json(self.run_directory.pending_row, {"global_step": self.step, **self._row})
                await self.leaving.save(self.step, self._save)
                raise

    async def _to_the_end(self) -> None:
        while True:
            try:
                await self._go_on()
                return
            except ServerLost as error:
                self.leaving.server_lost = True
                self.step = await self.parts.stop.unless(self.recovery.restore(error, self.step))
                await asyncio.to_thread(self.parts.ledger.resumed, self.step)
                self.leaving.server_lost = False

    async def _go_on(self) -> None:
        self._row = None
        await self._publish()
        if self.parts.checkpoints.latest() is None:
            await self._save()
        if self.step == 0 and self.held_out and self.parts.metrics.last_step < 0:
            await self._conclude({})
        if (row := self._pending_row()) is not None:
            await self._conclude(row)
        while self.step < self.course.total_steps:
            await self._conclude(await self._train_step())

    async def _train_step(self) -> dict[str, float]:
        """One batch. The step counts when its update is done and its weights are published."""
        usage = Usage(self.parts.sampler, lambda: self.parts.rollouts.docker_cpu_seconds)
        now = self.course.at(self.step)
        tasks_P = self.course.batch(self.step)
        groups_P = await self._sample(tasks_P, now.config)
        sampled = usage.sampled(groups_P) | self.course.measured(self.step, groups_P)
        started = time.monotonic()
        batch = assemble(groups_P, now.config)
        await self.parts.sampler.drain()
        updater = Updater(now.config, self.parts.policy, now.order.total_steps)
        updated = await updater.update(self.step, batch)
        await asyncio.to_thread(self.parts.ledger.trained, self.step, batch, updater.trials)
        await asyncio.to_thread(write_log_ratios, self.run_directory.path, self.step, updater.log_ratios)
        update_seconds = time.monotonic() - started
        self.step += 1
        published = time.monotonic()
        if batch.sequences_D:
            await self._publish()
        row = batch_metrics(groups_P) | batch.metrics | sampled | updated | self.parts.ledger.metrics()
        row |= self._breakdown.batch(groups_P) | {
            "time/update": update_seconds,
            "time/publish": time.monotonic() - published,
            "time/step": usage.seconds(),
        }
        self.parts.display.step(self.step, self.course.total_steps, row)
        return row

    async def _conclude(self, row: dict[str, float]) -> None:
        """Evaluation where it is due, the step's row, a checkpoint where it is due.

        The row is first: what a state has behind it is never done again. What a restored state repeats has its row.
        """
        self._row = row
        last = self.step == self.course.total_steps
        if self.step <= self.parts.metrics.last_step:
            self._settle()
        elif not self._evaluation_due(last):
            self._log(row)
        elif last or not self.config.eval_overlap:
            self._log(row | await self._evaluate())
        else:  # logged with its evaluation, which runs beside the next batch
            write_json(self.run_directory.pending_row, {"global_step": self.step, **row})
        latest = self.parts.checkpoints.latest()
        due = last or (self.config.save_every and self.step % self.config.save_every == 0)
        if due and (latest is None or latest.step < self.step):
            await self._save()

    def _log(self, row: dict[str, float]) -> None:
        self.parts.metrics.log(self.step, row | self.parts.budget.metrics())
        self._settle()

    def _settle(self) -> None:
        self._row = None
        self.run_directory.pending_row.unlink(missing_ok=True)

    def _pending_row(self) -> dict[str, float] | None:
        """Of the step that the run was stopped after, before its evaluation was over."""
        file = self.run_directory.pending_row
        row: dict[str, float] = read_json(file) if file.exists() else {}
        return row if row.pop("global_step", -1) == self.step > self.parts.metrics.last_step else None

    async def _evaluate(self) -> dict[str, float]:
        config = self.course.at(self.step).config
        temperature = config.temperature if config.eval_temperature is None else config.eval_temperature
        trials = self._run_trials("eval", self.held_out, config.eval_group_size, temperature)
        return await evaluation_row(trials, self.step, config.eval_timeout_sec, self._breakdown, self.parts.display)

    async def _sample(self, tasks_P: Sequence[Task], config: Config) -> list[TrajectoryGroup]:
        """A batch's trials, and beside them the evaluation that was put off until now: both are of these weights."""
        n_beside = len(self.held_out) * config.eval_group_size if self._row is not None else 0
        trials = self._run_trials("step", tasks_P, config.group_size, config.temperature, n_beside)
        if self._row is None:
            return await trials
        evaluated, groups_P = await beside(self._evaluate(), trials)
        self._log(self._row | evaluated)
        return groups_P

    async def _run_trials(
        self, kind: str, tasks_P: Sequence[Task], group_size: int, temperature: float, n_beside: int = 0
    ) -> list[TrajectoryGroup]:
        """Run a batch of trials; each is on disk before it counts, and those already there are not run again."""
        stop = self.parts.stop
        if not stop.may_go_on():
            raise Stopped(stop.why)
        folder = self.run_directory.trajectories(kind, self.step)
        with self.parts.display.trials(f"{kind} {self.step}", len(tasks_P) * group_size + n_beside) as show:

            def finished(trajectory: Trajectory) -> None:
                write_trajectory(folder, trajectory)
                show(trajectory)

            trials = self.parts.rollouts.run_groups(
                list(tasks_P),
                group_size,
                self.run_directory.batch(kind, self.step),
                prefix=f"{kind[0]}{self.step:06d}",
                temperature=temperature,
                on_trajectory=finished,
                done=self.parts.ledger.standing(kind, self.step, read_batch(folder)),
                training=kind == "step",
            )
            groups_P = await stop.unless(self.parts.policy.while_answering("sampling", trials), trials=True)
        if self.parts.conversations is not None:
            await asyncio.to_thread(self.parts.conversations.save, folder.name, groups_P)
        return groups_P

    async def _publish(self) -> None:
        """New weights to the sampler. On the self-hosted server the older sampler must never be used again."""
        await self.parts.sampler.drain()
        client = await self.parts.policy.publish(self.step)
        self.parts.sampler.publish(client, self.step)

    async def _save(self) -> None:
        path = await self.parts.policy.save(self.step)
        checkpoint = self.parts.trained.checkpoint(self.step, path)
        await self.parts.checkpoints.add(checkpoint, self.parts.policy.delete)
        self.parts.display.say(f"checkpoint after step {self.step}: {path}")

    def _evaluation_due(self, last: bool) -> bool:
        if not self.held_out or self.step == 0:
            return bool(self.held_out)
        done = self.step - 1
        return last or evaluation_due(self.config.eval_every, self.course.at(done).order, done)
