"""The loop of fine-tuning: one optimizer step of cross entropy a batch, held-out loss, early stop, checkpoints."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harbortrainer.backend.datum import CROSS_ENTROPY
from harbortrainer.commands import command
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.minibatches import normalize
from harbortrainer.learning.observations import observed_nats, weighed
from harbortrainer.sft.conversation import Demonstration
from harbortrainer.sft_config import SftConfig
from harbortrainer.stopping import Stopped, run_until
from harbortrainer.tasks.order import TaskOrder
from harbortrainer.training.loop import Loop, LoopParts
from harbortrainer.training.update import adam_at

LOSS, HELD_OUT = "sft/nll", "sft/held_out_nll"  # nats a trained token
FORWARD_TOKENS = 65_536  # of held-out conversations in one request


@dataclass(frozen=True, slots=True)
class Lessons:
    """What is trained on and measured on, step by step. `configs`: (first step, settings) in order of time."""

    order: TaskOrder[Demonstration]
    held_out: Sequence[Demonstration]
    configs: Sequence[tuple[int, SftConfig]]

    @property
    def total_steps(self) -> int:
        return self.order.total_steps

    def at(self, step: int) -> SftConfig:
        """Return the most recent settings that apply to the 0-based `step`."""
        return next(config for first, config in reversed(self.configs) if first <= step)

    def batch(self, step: int) -> list[TrainingSequence]:
        """Return step's sequences, weighted for the loss, longest first: a server cuts them into micro batches in order
        and pads each to its longest.
        """
        sequences = [sequence for one in self.order.batch(step) for sequence in one.sequences_D]
        config = self.at(step)
        weighted = weighed(normalize(sequences, config.loss_norm), config.observation_loss_coef)
        return sorted(weighted, key=lambda s: -len(s.tokens_T))

    def due(self, step: int) -> bool:
        """Return whether the held-out loss is measured after `step` steps."""
        every = self.at(max(step - 1, 0)).eval_every
        if not self.held_out:
            return False
        if step in (0, self.total_steps):
            return True
        return step % every == 0 if every else self.order.ends_epoch(step - 1)


def best_step(rows: Sequence[Mapping[str, float]]) -> int | None:
    """Return the step with the lowest held-out loss, the first of equal ones; None without a measurement."""
    measured = [(row[HELD_OUT], int(row["global_step"])) for row in rows if HELD_OUT in row]
    return min(measured)[1] if measured else None


def waited(rows: Sequence[Mapping[str, float]]) -> int:
    """Return measurements since the lowest held-out loss."""
    steps = [int(row["global_step"]) for row in rows if HELD_OUT in row]
    best = best_step(rows)
    return 0 if best is None else len(steps) - 1 - steps.index(best)


class SftTrainer(Loop[SftConfig]):
    """Runs the steps after `step` to the end, or until the held-out loss has not fallen for `patience` measurements.

    A lost server costs the steps since the last checkpoint, which are repeated.
    """

    def __init__(self, config: SftConfig, parts: LoopParts, lessons: Lessons, step: int) -> None:
        super().__init__(config, parts, step)
        self.lessons = lessons

    @property
    def done(self) -> str:
        return f"done; train on it with: {command(f'train init_from={self.parts.run.path}')} ..."

    async def proceed(self) -> None:
        self._rows.forget()
        if self.parts.checkpoints.latest() is None:
            await self.save()
        if kept := self._rows.kept(self.step):  # an earlier process was stopped while it measured
            await self._conclude(kept[-1][1])
        elif self.step == 0 and self.lessons.held_out and self.parts.metrics.last_step < 0:
            await self._conclude({})
        patience = self.config.patience
        while self.step < self.lessons.total_steps and not (patience and waited(self._logged()) >= patience):
            if not self.parts.stop.may_continue():
                raise Stopped(self.parts.stop.why)
            await self._conclude(await self._train_step())
        if self.step < self.lessons.total_steps:
            await self._keep_best()

    async def _train_step(self) -> dict[str, float]:
        """One optimizer step. Returns its metrics."""
        began, config = time.monotonic(), self.lessons.at(self.step)
        sequences_D = self.lessons.batch(self.step)
        adam = adam_at(self.step, self.lessons.total_steps, config)
        self.parts.display.doing(f"step {self.step + 1}: update of the weights")
        result = await self.parts.policy.update(sequences_D, loss_fn=CROSS_ENTROPY, loss_fn_config=None, adam=adam)
        await asyncio.to_thread(self.parts.ledger.taught, self.step, sequences_D)
        self.step += 1
        tokens = sum(len(s.tokens_T) for s in sequences_D)
        seconds = time.monotonic() - began
        return result.metrics | {
            LOSS: mean_nll(sequences_D, result.logprobs_D),
            **observed_nats(sequences_D, result.logprobs_D),
            "optim/learning_rate": adam.learning_rate,
            "train/datums": float(len(sequences_D)),
            "train/tokens": float(tokens),
            "train/action_token_fraction": sum(int(s.mask_T.sum()) for s in sequences_D) / tokens,
            "train/tokens_per_second": tokens / seconds,
            "time/step": seconds,
        }

    async def _conclude(self, row: dict[str, float]) -> None:
        """Measure the held-out loss where it is due, log the step's row, save a checkpoint where it is due."""
        if self._rows.open(self.step, row):  # else a restored state repeated the step
            self._rows.log(self.step, await self._measure() if self.lessons.due(self.step) else {})
        self.parts.display.taught(self.step, self.lessons.total_steps, row)
        latest = self.parts.checkpoints.latest()
        every = self.config.save_every
        last, best = self.step == self.lessons.total_steps, self.config.patience and self._best() == self.step
        due = last or best or (every and self.step % every == 0)
        if due and (latest is None or latest.step < self.step):
            await self.save()

    async def _measure(self) -> dict[str, float]:
        """The loss of the held-out conversations under the present weights."""
        began = time.monotonic()
        self.parts.display.doing(f"held-out loss after step {self.step}")
        parts = requests([sequence for one in self.lessons.held_out for sequence in one.sequences_D])
        sequences_D = [sequence for part in parts for sequence in part]
        logprobs_D: list[np.ndarray] = []
        for part in parts:
            logprobs_D += await run_until(self.parts.policy.logprobs(part), self.parts.stop.stopped())
        tokens = sum(len(sequence.tokens_T) for sequence in sequences_D)
        await asyncio.to_thread(self.parts.ledger.scored, self.step, tokens)
        observed = {f"eval/{name}": value for name, value in observed_nats(sequences_D, logprobs_D).items()}
        return {HELD_OUT: mean_nll(sequences_D, logprobs_D), **observed, "time/evaluate": time.monotonic() - began}

    def _logged(self) -> list[dict[str, float]]:
        return [row for row in read_lines(self.parts.run.metrics) if row["global_step"] <= self.step]

    def _best(self) -> int | None:
        return best_step(self._logged())

    async def _keep_best(self) -> None:
        """Delete the states behind the best one, so that the newest checkpoint is the best."""
        best = self._best()
        self.parts.display.say(
            f"ends after step {self.step} of {self.lessons.total_steps}: the held-out loss has not fallen since "
            f"step {best}, in {self.config.patience} measurements (patience)"
        )
        for record in [one for one in self.parts.checkpoints.records if best is not None and one.step > best]:
            self.parts.checkpoints.drop(record)
            await self.parts.policy.delete(record.path)


def mean_nll(sequences_D: Sequence[TrainingSequence], logprobs_D: Sequence[np.ndarray]) -> float:
    """Return the mean over all masked tokens of -log p; each array of `logprobs_D` has its sequence's N tokens."""
    kept = [logprobs[s.mask_T] for s, logprobs in zip(sequences_D, logprobs_D, strict=True)]
    return -float(np.concatenate(kept).mean())


def requests(sequences_D: Sequence[TrainingSequence]) -> list[list[TrainingSequence]]:
    """Return the sequences in parts of at most FORWARD_TOKENS, longest first; a longer one is alone."""
    parts: list[list[TrainingSequence]] = []
    left = 0
    for sequence in sorted(sequences_D, key=lambda s: -len(s.tokens_T)):
        left -= len(sequence.tokens_T)
        if left < 0:
            parts.append([])
            left = FORWARD_TOKENS - len(sequence.tokens_T)
        parts[-1].append(sequence)
    return parts
