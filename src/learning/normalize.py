"""Length normalisation, written into the advantages: the loss of an optimizer step is their plain sum over tokens."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from src.learning.datums import TrainingSequence


def normalize(
    sequences_D: Sequence[TrainingSequence], loss_norm: Literal["token_mean", "sequence_mean", "token_sum"]
) -> list[TrainingSequence]:
    """Scale the advantages of one minibatch so that a server that sums over tokens and datums computes the named loss.

    token_mean:     1/T sum over all T sampled tokens          (DAPO, arXiv 2503.14476)
    sequence_mean:  mean over trajectories of the mean over a trajectory's sampled tokens  (GRPO, arXiv 2402.03300)
    token_sum:      the sum itself                             (Tinker's own convention)
    """
    tokens = Counter({s.trial_name: 0 for s in sequences_D})
    for sequence in sequences_D:
        tokens[sequence.trial_name] += int(sequence.mask_T.sum())
    total = max(tokens.total(), 1)

    def divisor(sequence: TrainingSequence) -> float:
        if loss_norm == "token_mean":
            return total
        return len(tokens) * tokens[sequence.trial_name] if loss_norm == "sequence_mean" else 1.0

    return [s.with_advantages(s.advantages_T / divisor(s)) for s in sequences_D]
