"""KL penalty against the base model, folded into the advantages."""

from collections.abc import Sequence

import numpy as np

from src.learning.datums import TrainingSequence


def apply_kl_penalty(
    sequences_D: Sequence[TrainingSequence], base_logprobs_D: Sequence[np.ndarray], coefficient: float
) -> tuple[list[TrainingSequence], dict[str, float]]:
    """A_t += coefficient * (mean(d) - d_t) on sampled tokens, d_t = log pi(t) - log base(t), mean over the batch.

    The per-token log-ratio is an unbiased estimate of KL(pi || base) (k1, http://joschu.net/blog/kl-approx.html); its
    batch mean is subtracted as a baseline, so the penalty moves probability without a reward of its own.
    `base_logprobs_D`: one array of N natural logs a sequence. Returns new sequences and `kl/base`, in nats a token.
    """
    ratios_D = [
        np.where(s.mask_T, s.logprobs_T - base, 0.0) for s, base in zip(sequences_D, base_logprobs_D, strict=True)
    ]
    tokens = sum(int(s.mask_T.sum()) for s in sequences_D)
    mean = float(sum(ratio.sum() for ratio in ratios_D) / max(tokens, 1))
    penalised = [
        s.with_advantages(s.advantages_T + coefficient * (mean - ratio))
        for s, ratio in zip(sequences_D, ratios_D, strict=True)
    ]
    return penalised, {"kl/base": mean}
