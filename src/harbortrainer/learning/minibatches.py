"""One batch -> `num_substeps` shuffled minibatches, with advantages scaled for the loss."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from harbortrainer.config import Config
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.observations import weighed
from harbortrainer.learning.trajectory import TrialName


def normalize(
    sequences_D: Sequence[TrainingSequence], loss_norm: Literal["token_mean", "sequence_mean", "token_sum"]
) -> list[TrainingSequence]:
    """Scale the advantages of one minibatch so that a server that sums over tokens and datums computes the named loss.

    token_mean:     1/T sum over all T sampled tokens          (DAPO, arXiv 2503.14476)
    sequence_mean:  mean over trajectories of the mean over a trajectory's sampled tokens  (GRPO, arXiv 2402.03300)
    token_sum:      the sum itself                             (Tinker's own convention)
    """
    tokens = Counter({s.trial_name: 0 for s in sequences_D if s.acts})
    for sequence in sequences_D:
        if sequence.acts:
            tokens[sequence.trial_name] += int(sequence.mask_T.sum())
    total = max(tokens.total(), 1)

    def divisor(sequence: TrainingSequence) -> float:
        if loss_norm == "token_mean":
            return total
        return len(tokens) * tokens[sequence.trial_name] if loss_norm == "sequence_mean" else 1.0

    return [s.with_advantages(s.advantages_T / divisor(s)) if s.acts else s for s in sequences_D]


def optimizer_batches(
    sequences_D: Sequence[TrainingSequence], config: Config, step: int, left_out: Collection[str] = ()
) -> list[list[TrainingSequence]]:
    """Get the sequences of each optimizer step of the batch `step`: seeded minibatches, normalized by `loss_norm`, and
    their observations by `observation_loss_coef`.

    For a `loss` of the user's they have whole groups, and advantages as they are.

    Trials that are `left_out` do not count in the normalization. A minibatch of nothing else takes no step.
    """
    rng = np.random.default_rng([config.seed, step, 1])
    parts = minibatches(sequences_D, config.num_substeps, rng, whole_groups=config.loss is not None)
    kept = [[sequence for sequence in part if sequence.trial_name not in left_out] for part in parts]
    norm = config.loss_norm if config.loss is None else "token_sum"
    return [weighed(normalize(part, norm), config.observation_loss_coef) for part in kept if part]


def minibatches(
    sequences_D: Sequence[TrainingSequence], num_substeps: int, rng: np.random.Generator, *, whole_groups: bool = False
) -> list[list[TrainingSequence]]:
    """Shuffle whole trajectories, or groups, into at most `num_substeps` parts of nearly equal number, none empty."""
    if not sequences_D:
        return []

    def name_of(sequence: TrainingSequence) -> str:
        return str(TrialName.parse(sequence.trial_name).group) if whole_groups else sequence.trial_name

    names = sorted(set(map(name_of, sequences_D)))
    rng.shuffle(names)
    parts = [set(part.tolist()) for part in np.array_split(np.array(names), min(num_substeps, len(names)))]
    return [[s for s in sequences_D if name_of(s) in part] for part in parts]
