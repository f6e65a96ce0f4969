"""Samples that are older than the weights in training: their age, their probability ratios, and a correction."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harbortrainer.learning.datums import TrainingSequence, trainer_log_ratios
from harbortrainer.learning.trajectory import TrajectoryGroup

CAP = 2.0  # the largest probability ratio of importance_sampling; a trial beyond it in the mean is not learned from
TINY = 1e-12  # probabilities of 0 and 1 have no logarithm


def staleness_metrics(groups_P: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
    """Return steps between the weights that sampled a turn and `step`, over all turns of trials that can be trained on.

    `turns_by_age/N`: turns that are N steps old, for each N up to the oldest.
    """
    turns = [turn for group in groups_P for trial in group.trajectories_G for turn in trial.turns]
    ages = [step - turn.weights_version for turn in turns] or [0]
    mixed = [len({turn.weights_version for turn in trial.turns}) > 1 for g in groups_P for trial in g.trajectories_G]
    return {
        "off_policy/staleness_mean": float(np.mean(ages)),
        "off_policy/staleness_max": float(max(ages)),
        "off_policy/mixed_trials": float(sum(mixed)),
        **{f"off_policy/turns_by_age/{age}": float(ages.count(age)) for age in range(max(ages) + 1)},
    }


def ratio_metrics(
    sequences_D: Sequence[TrainingSequence], trained_D: Sequence[np.ndarray], low: float, high: float
) -> dict[str, float]:
    """Return ratios p(trainer) / p(sampler) of the sampled tokens, before an update; N natural logs a sequence each.

    `clipped_fraction`: tokens with a ratio outside `low` to `high`. `effective_sample_size`: (sum w)^2 / (n sum w^2) of
    the ratios w of n tokens (Kong 1992), 1 when all are equal.
    """
    logs = np.concatenate([*trainer_log_ratios(sequences_D, trained_D).values()])
    ratios = np.exp(logs.astype(np.float64))
    p01, p50, p99 = np.quantile(ratios, [0.01, 0.5, 0.99])
    return {
        "off_policy/ratio_p01": float(p01),
        "off_policy/ratio_p50": float(p50),
        "off_policy/ratio_p99": float(p99),
        "off_policy/effective_sample_size": float(ratios.sum() ** 2 / (len(ratios) * np.square(ratios).sum())),
        "off_policy/clipped_fraction": float(np.mean((ratios < low) | (ratios > high))),
    }


def within_divergence(
    sequences_D: Sequence[TrainingSequence], current_D: Sequence[np.ndarray], divergence: str, threshold: float
) -> tuple[list[TrainingSequence], float]:
    """Get the sequences for importance_sampling as DPPO has it, and the share of sampled tokens that get no gradient.

    DPPO (arXiv 2602.04879), binary form: p is the sampled token's probability under the weights in training
    (`current_D`, N natural logs a sequence), q under those that sampled it.
    tv: D = |p - q|    kl: D = q log(q / p) + (1 - q) log((1 - q) / (1 - p))
    The loss is -(p / q) * A, without a token where D > threshold and the step would move p further from q: A > 0 and
    p > q, or A < 0 and p < q. Such a token stays in the divisor of `loss_norm`.
    """
    kept: list[TrainingSequence] = []
    masked = 0
    for sequence, current in zip(sequences_D, current_D, strict=True):
        p, q = (np.clip(np.exp(logs.astype(np.float64)), TINY, 1 - TINY) for logs in (current, sequence.logprobs_T))
        distance = np.abs(p - q) if divergence == "tv" else q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
        beyond = sequence.mask_T & (distance > threshold) & (sequence.advantages_T * (p - q) > 0)
        masked += int(beyond.sum())
        kept.append(sequence.with_advantages(np.where(beyond, 0, sequence.advantages_T)))
    return kept, masked / max(1, sum(int(s.mask_T.sum()) for s in sequences_D))


def truncated(
    sequences_D: Sequence[TrainingSequence], trained_D: Sequence[np.ndarray], cap: float = CAP
) -> tuple[list[TrainingSequence], set[str]]:
    """Get all sequences with importance ratios of at most `cap` under the weights in training, and trials to leave out.

    The loss importance_sampling weighs a token with w = p(trainer) / p(sampler), so a truncated weight min(w, cap)
    (Ionides 2008; arXiv 1802.01561) is a sampling logprob of at least log p(trainer) - log cap. A trial whose geometric
    mean ratio (arXiv 2507.18071) is outside 1/cap to cap is too far from the policy to learn from.
    `trained_D`: N natural logs a sequence.
    """
    logs = trainer_log_ratios(sequences_D, trained_D)
    too_far = {name for name, ratios in logs.items() if abs(float(ratios.mean())) > np.log(cap)}
    corrected: list[TrainingSequence] = []
    for sequence, trained in zip(sequences_D, trained_D, strict=True):
        least = np.where(sequence.mask_T, trained - np.log(cap), sequence.logprobs_T)
        corrected.append(replace(sequence, logprobs_T=np.maximum(sequence.logprobs_T, least).astype(np.float32)))
    return corrected, too_far
