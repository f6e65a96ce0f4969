"""The loop: sample -> score -> assemble -> update -> publish.

GRPO on trials. A batch is `batch_size` tasks with `group_size` trials each, sampled from the current weights.
The advantage of a trial is its reward minus its group's mean (or the mean of the others; over the group's standard
deviation on request); every sampled token of the trial carries it. Departures: no critic, no clipping unless the loss
clips (ppo, cispo), KL to a reference only as an advantage penalty and off by default. Trials without a grade are
left out (never reward 0); groups with equal rewards carry no signal and may be left out. Strictly on-policy by default:
weights are published, sampled at once, and trained on. With max_steps_off_policy=K trials run on during updates, and a
step trains on turns that weights of at most K steps before sampled (`flow.py`, `learning/pace.py`).
"""

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from harbortrainer.backend.policy import Published
from harbortrainer.config import Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.batch import TrainingBatch, assemble
from harbortrainer.learning.datums import count_tokens
from harbortrainer.learning.observations import observed_nats, observing
from harbortrainer.learning.off_policy import staleness_metrics
from harbortrainer.learning.trajectory import BatchKind, Trajectory, TrajectoryGroup, batch_name
from harbortrainer.policy.sampler import Sampler
from harbortrainer.rollout.gates import n_containers
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.conversations import Conversations
from harbortrainer.run.metrics import Breakdown, StepUsage, batch_metrics, eval_metrics
from harbortrainer.run.trajectories import read_batch, write_log_ratios, write_trajectory
from harbortrainer.stopping import Stopped, run_until
from harbortrainer.tasks.task import Task
from harbortrainer.training.drift import JUDGED, SILENT_BATCHES, no_signal, worsening
from harbortrainer.training.evaluation import Evaluations
from harbortrainer.training.flow import Flow
from harbortrainer.training.loop import Loop, LoopParts
from harbortrainer.training.references import References
from harbortrainer.training.schedule import SettingsByStep, evaluation_due
from harbortrainer.training.update import Updater


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The objects that the trainer drives besides."""

    rollouts: Rollouts
    conversations: Conversations | None = None  # None = not written
    references: References | None = None  # None = the policy is compared with nothing


class Terminus2Trainer(Loop[Config]):
    """Runs the steps after `start_step` to the end."""

    def __init__(
        self,
        config: Config,
        parts: LoopParts,
        trials: Trials,
        schedule: SettingsByStep,
        held_out: Sequence[Task],
        start_step: int,
    ) -> None:
        super().__init__(config, parts, start_step)
        self.trials, self.schedule = trials, schedule
        self._breakdown = Breakdown([*schedule.train, *held_out], config.agent, config.seed)
        self._held_out = held_out
        self._evaluations = Evaluations(parts.policy, parts.sampler, parts.checkpoints, parts.stop)
        self._rows_so_far = read_lines(parts.run.metrics)  # of steps, with what is judged of them
        # evaluations: beside training, or between a step and the next batch
        self._beside = config.max_steps_off_policy > 0

    async def completed(self) -> None:
        if self.trials.references is not None:
            await self.trials.references.delete()

    @property
    def done(self) -> str:
        return f"done; metrics.jsonl and report.html are in {self.parts.run.path}"

    @property
    def summaries(self) -> list[str]:
        return [self.parts.ledger.summary(), *super().summaries]

    async def proceed(self) -> None:
        self._rows.forget()
        await self._publish()
        if self.parts.checkpoints.latest() is None:
            await self.save()
        parts = self.parts
        self._evaluations = Evaluations(parts.policy, parts.sampler, parts.checkpoints, parts.stop)
        self._evaluations.tidy(parts.metrics.last_step)
        async with self._evaluations:
            await self._take_up()
            flow = Flow(
                self.trials.rollouts, parts.ledger, parts.stop, self.schedule,
                run=parts.run, show=parts.display.finished,
                ends=lambda: [*parts.policy.losses("sampling"), self._evaluations.failing()],
            )  # fmt: skip
            async with flow:
                while self.step < self.schedule.total_steps:
                    row = await self._train_step(flow)
                    await self._conclude(self.step, row)
                await self._evaluations.over()
        parts.policy.retire(parts.sampler.versions_in_use)

    async def _take_up(self) -> None:
        """Conclude the steps whose rows an earlier process left open; before the first step, the start."""
        rows = self._rows.kept(self.step)
        if not rows and self.step == 0 and self._held_out and self.parts.metrics.last_step < 0:
            rows = [(0, {})]
        for step, row in rows:
            await self._conclude(step, row)

    async def _train_step(self, flow: Flow) -> dict[str, float]:
        """One batch: sample, score, assemble, update, publish. Returns the step's metrics."""
        config = self.schedule.at(self.step).config
        usage = StepUsage(self.parts.sampler, await self.parts.display.server_load())
        with usage.timed("sample"):
            groups_P, scores = await self._sample_and_score(flow, config)
        if not config.max_steps_off_policy:
            usage.sampled(groups_P, await self.parts.display.server_load())
        batch = await asyncio.to_thread(assemble, groups_P, config)  # trials run meanwhile
        if not self._evaluations.steps and not self._evaluates(self.step + 1):
            flow.prepare()
        with usage.timed("update"):
            updated = await self._update(batch)
        with usage.timed("publish"):
            await self._publish(changed=not updated["train/skipped_batch"])
        flow.published(self.step)
        load = await self.parts.display.server_load()
        if config.max_steps_off_policy:  # trials run during the whole step
            usage.sampled(groups_P, load)
        row = scores | batch.metrics | updated | self.parts.ledger.metrics() | usage.ended(load)
        self.parts.display.step(self.step, self.schedule.total_steps, row)
        self._rows_so_far.append({name: value for name, value in row.items() if name in JUDGED})
        for line in (no_signal(self._rows_so_far[-SILENT_BATCHES - 1 :]), worsening(self._rows_so_far)):
            if line is not None:
                self.parts.display.say(line)
        return row

    async def _sample_and_score(self, flow: Flow, config: Config) -> tuple[list[TrajectoryGroup], dict[str, float]]:
        """The step's trials with their rewards, and their metrics."""
        groups_P = await self._batch(flow, config)
        measured = flow.metrics | self.trials.rollouts.metrics
        if config.oversample_max:
            measured["group/oversampled"] = float(len(groups_P) - self.schedule.size(self.step))
        if config.max_steps_off_policy:
            measured |= staleness_metrics(groups_P, self.step)
        return groups_P, batch_metrics(groups_P) | self._breakdown.batch(groups_P) | measured

    async def _batch(self, flow: Flow, config: Config) -> list[TrajectoryGroup]:
        n_trials = self.schedule.size(self.step) * config.group_size
        n_evaluated = len(self._evaluations.steps) * len(self._held_out) * config.eval_group_size
        with self.parts.display.trials(f"step {self.step}", n_trials + n_evaluated):
            groups_P = await flow.batch(self.step)
            if not self.parts.policy.frozen_samplers:
                await self._evaluations.over()
        await self._keep_conversations("step", self.step, groups_P)
        return groups_P

    async def _update(self, batch: TrainingBatch) -> dict[str, float]:
        """Train on the batch and record it; this completes the step."""
        await self._quiet()
        now = self.schedule.at(self.step)
        updater = Updater(now.config, self.parts.policy, now.order.total_steps, self.trials.references)
        updated = await updater.update(self.step, batch)
        await asyncio.to_thread(self.parts.ledger.trained, self.step, batch, updater.trials, updater.scored)
        await asyncio.to_thread(write_log_ratios, self.parts.run.path, self.step, updater.log_ratios)
        self.step += 1
        return updated

    async def _publish(self, *, changed: bool = True) -> None:
        """Give the sampler the new weights, and delete older ones that no trial needs any more."""
        if not changed:
            self.parts.sampler.relabel(self.step)
            self.parts.policy.relabel(self.step)
            return
        await self._quiet()
        client = await self.parts.policy.publish(self.step)
        self.parts.sampler.publish(client, self.step)
        self.parts.policy.retire(self.parts.sampler.versions_in_use)

    async def _quiet(self) -> None:
        """Let no request run beside an update, where none may: sampling can overwrite the weights in training."""
        if self._beside and self.parts.policy.frozen_samplers:
            return
        await self.parts.sampler.drain()

    async def _conclude(self, step: int, row: dict[str, float]) -> None:
        """Evaluate where it is due and log the row of `step`; then save a checkpoint where it is due.

        An evaluation beside training only begins here; its row is on disk until it ends.
        """
        last = step == self.schedule.total_steps
        if self._rows.open(step, row):
            if not self._evaluates(step):
                self._rows.log(step, {})
            elif step == self.step and not self._beside:
                await self._evaluate(step, None, None)
            else:
                await self._evaluate_beside(step)
        latest = self.parts.checkpoints.latest()
        due = last or (self.config.save_every and step % self.config.save_every == 0)
        if due and step == self.step and (latest is None or latest.step < step):
            await self.save()

    def _evaluates(self, step: int) -> bool:
        """Tell if an evaluation follows after `step` steps: at the start, by `eval_every`, at the end."""
        if not self._held_out or step in (0, self.schedule.total_steps):
            return bool(self._held_out)
        return evaluation_due(self.config.eval_every, self.schedule.at(step - 1).order, step - 1)

    async def _evaluate_beside(self, step: int) -> None:
        self._rows.keep()
        if not await self._evaluations.open(step, functools.partial(self._evaluate, step)):
            self.parts.display.say(f"held-out after step {step}: the server has lost its weights; no evaluation")
            self._rows.log(step, {})
        elif not self._beside or (step == self.schedule.total_steps and not self.parts.policy.frozen_samplers):
            await self._evaluations.over()

    async def _evaluate(self, step: int, client: Published | None, weights: Sampler | None) -> None:
        """Evaluate and log the row of `step`. `client`, `weights`: its frozen sampler, None = that published last."""
        started = time.monotonic()
        groups_P = await self._run_evaluation(step, client, weights)
        row = eval_metrics(groups_P) | self._breakdown.evaluation(groups_P)
        row |= await self._known_observations(step, client, groups_P)
        row["time/evaluate"] = time.monotonic() - started
        self.parts.display.evaluation(step, row)
        self._rows.log(step, row)
        if weights is not None:
            self._evaluations.tidy(step)
            await self.parts.checkpoints.prune(self.parts.policy.delete, self._rows.undecided)

    async def _known_observations(
        self, step: int, client: Published | None, groups_P: Sequence[TrajectoryGroup]
    ) -> dict[str, float]:
        """How well the weights of an evaluation know what the environment answered in it."""
        sequences_D = [s for group in groups_P for trial in group.trajectories_G for s in observing(trial)]
        if not self.schedule.at(step).config.observation_loss_coef or not sequences_D:
            return {}
        scoring = self.parts.policy.held_out_logprobs(sequences_D, client)
        if (logprobs_D := await run_until(scoring, self.parts.stop.stopped())) is None:
            return {}
        await asyncio.to_thread(self.parts.ledger.scored, step, count_tokens(sequences_D).total())
        return {f"eval/{name}": value for name, value in observed_nats(sequences_D, logprobs_D).items()}

    async def _run_evaluation(
        self, step: int, client: Published | None, weights: Sampler | None
    ) -> list[TrajectoryGroup]:
        """Run the trials of an evaluation; each is on disk before it counts, and stored trials are not run again."""
        stop, config = self.parts.stop, self.schedule.at(step).config
        if not stop.may_continue():
            raise Stopped(stop.why)
        folder = self.parts.run.trajectories("eval", step)

        def finished(trajectory: Trajectory) -> None:
            write_trajectory(folder, trajectory)
            self.parts.display.finished(trajectory)

        at_once = 0
        if weights is not None and self.step < self.schedule.total_steps:  # half of the places are training's
            at_once = max(1, n_containers(self.config) // (2 * config.eval_group_size))
        with self.parts.display.trials(f"eval {step}", len(self._held_out) * config.eval_group_size):
            trials = self.trials.rollouts.run_groups(
                self._held_out,
                config.eval_group_size,
                self.parts.run.batch("eval", step),
                kind="eval",
                step=step,
                temperature=config.temperature,
                on_trajectory=finished,
                done=self.parts.ledger.reusable("eval", read_batch(folder)),
                weights=weights,
                at_once=at_once,
            )
            groups_P = await run_until(trials, stop.stopped(trials=True), *self.parts.policy.losses("sampling", client))
        await self._keep_conversations("eval", step, groups_P)
        return groups_P

    async def _keep_conversations(self, kind: BatchKind, step: int, groups_P: Sequence[TrajectoryGroup]) -> None:
        if self.trials.conversations is not None:
            await asyncio.to_thread(self.trials.conversations.save, batch_name(kind, step), groups_P)
