"""The update of a batch: optimizer steps over minibatches, each with its scheduled learning rate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import tinker

from harbortrainer.backend.own_loss import OwnLoss
from harbortrainer.backend.policy import PolicyTrainer
from harbortrainer.backend.terms import adam_settings, loss_settings, sent_loss
from harbortrainer.config import Config, RunSettings
from harbortrainer.learning.batch import TrainingBatch
from harbortrainer.learning.brought import function
from harbortrainer.learning.datums import TrainingSequence, count_tokens, trainer_log_ratios
from harbortrainer.learning.minibatches import optimizer_batches
from harbortrainer.learning.observations import as_targets, observed_nats
from harbortrainer.learning.off_policy import CAP, ratio_metrics, truncated, within_divergence
from harbortrainer.stats import known, mean
from harbortrainer.training.references import References


def adam_at(step: int, total_steps: int, config: RunSettings) -> tinker.AdamParams:
    """Return Adam's settings for optimizer step `step` (from 0) of `total_steps`."""
    return tinker.AdamParams(**adam_settings(config) | {"learning_rate": learning_rate(step, total_steps, config)})


def learning_rate(step: int, total_steps: int, config: RunSettings) -> float:
    """Return its rate: linear warm-up to the peak, then `lr_schedule` towards 0. The last step's rate is above 0.

    cosine: arXiv 1608.03983, one half period.
    """
    peak, warmup_steps = config.learning_rate, config.warmup_steps
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if config.lr_schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return peak * (1 - progress if config.lr_schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)


class Updater:
    """Takes `num_substeps` optimizer steps on one batch, over shuffled minibatches, at the scheduled learning rate."""

    def __init__(
        self, config: Config, policy: PolicyTrainer, total_steps: int, references: References | None = None
    ) -> None:
        """`references`: None = no KL penalty, nothing is compared."""
        self._config = config
        self._policy = policy
        self._references = references
        self._optimizer_steps = total_steps * config.num_substeps
        self.trials: list[list[str]] = []  # of each optimizer step, in order
        self.scored: Mapping[str, int] = {}  # tokens that references scored, by trial
        self.log_ratios: dict[str, np.ndarray] = {}  # trainer to sampler, by trial

    async def update(self, step: int, batch: TrainingBatch) -> dict[str, float]:
        """Train on the batch. One without signal, or whose trials are all too old, takes no optimizer step, counted."""
        if not batch.sequences_D:
            return {"train/skipped_batch": 1.0}
        sequences_D, metrics = batch.sequences_D, {}
        if self._references is not None:
            compared = await self._references.compare(step, sequences_D, self._config)
            sequences_D, metrics, self.scored = compared
        sampled_D, trained_D, too_far = sequences_D, None, set[str]()
        corrected = self._config.loss is None and self._config.loss_fn == "importance_sampling"
        if self._config.max_steps_off_policy and corrected:
            trained_D = await self._policy.logprobs(sampled_D)
            sequences_D, too_far = truncated(sampled_D, trained_D)
            metrics["off_policy/masked_trials"] = float(len(too_far))
        parts = optimizer_batches(sequences_D, self._config, step, too_far)
        results = []
        masked: list[float] = []
        brought = None if self._config.loss is None else function("loss", self._config.loss)
        for substep, part in enumerate(parts):
            adam = adam_at(step * self._config.num_substeps + substep, self._optimizer_steps, self._config)
            if brought is not None:
                result = await self._policy.update_by(OwnLoss(brought, part), adam)
            else:
                sent, share = await self._as_sent(part)
                masked += share
                result = await self._policy.update(
                    sent, loss_fn=sent_loss(self._config), loss_fn_config=loss_settings(self._config), adam=adam
                )
            results.append(result)
            self.trials.append(list(dict.fromkeys(sequence.trial_name for sequence in part)))
            metrics |= result.metrics | {"optim/learning_rate": adam.learning_rate}
            if trained_D is None:
                self.log_ratios |= trainer_log_ratios(part, result.logprobs_D)
        if trained_D is not None:
            self.log_ratios = trainer_log_ratios(sampled_D, trained_D)
        else:  # of the first optimizer step: later ones have other weights
            sampled_D, trained_D = parts[0], results[0].logprobs_D
        metrics |= self._ratio_metrics(sampled_D, trained_D)
        metrics |= known({"loss/dppo_masked": mean(masked)})
        metrics |= observed_nats([s for p in parts for s in p], [one for r in results for one in r.logprobs_D])
        return metrics | {"train/skipped_batch": float(not parts), "optim/steps": float(len(parts))}

    async def _as_sent(self, part: Sequence[TrainingSequence]) -> tuple[Sequence[TrainingSequence], list[float]]:
        """A minibatch as the loss gets it, and the share of tokens that dppo masks, if it is the loss.

        Both dppo and observations need the policy's own logprobs: one forward pass, before this minibatch's step. This
        project's server takes the latter in the same pass (`OWN_RATIO`).
        """
        dppo, observed = self._config.loss_fn == "dppo", bool(self._config.observation_loss_coef)
        own = self._policy.knows_own_ratio
        if not dppo and (own or not observed):
            return (as_targets(part, None) if observed else part), []
        current_D = await self._policy.logprobs(part)
        self.scored = Counter(self.scored) + count_tokens(part)
        share: list[float] = []
        if dppo:
            part, masked = within_divergence(part, current_D, *self._config.dppo)
            share = [masked]
        return as_targets(part, current_D) if observed else part, share

    def _ratio_metrics(
        self, sequences_D: Sequence[TrainingSequence], trained_D: Sequence[np.ndarray]
    ) -> dict[str, float]:
        """Sampler against trainer, before the update."""
        pairs = zip(sequences_D, trained_D, strict=True)
        gap = np.concatenate([trained[s.mask_T] - s.logprobs_T[s.mask_T] for s, trained in pairs])
        metrics = {
            "logprobs/max_abs_difference": float(np.abs(gap).max()),
            "logprobs/kl_sampler_trainer": float(np.mean(np.exp(gap) - 1 - gap)),
        }
        if not self._config.max_steps_off_policy:
            return metrics
        clips = loss_settings(self._config) or {
            "clip_low_threshold": 0.0,
            "clip_high_threshold": math.inf if self._config.loss_fn == "dppo" else CAP,
        }
        return metrics | ratio_metrics(
            sequences_D, trained_D, clips["clip_low_threshold"], clips["clip_high_threshold"]
        )
