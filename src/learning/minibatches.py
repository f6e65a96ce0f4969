"""One batch -> `num_substeps` shuffled minibatches."""

from collections.abc import Sequence

import numpy as np

from src.config import Config
from src.learning.datums import TrainingSequence
from src.learning.normalize import normalize


def optimizer_batches(
    sequences_D: Sequence[TrainingSequence], config: Config, step: int
) -> list[list[TrainingSequence]]:
    """What each optimizer step of the batch `step` is sent: seeded minibatches, advantages as `loss_norm` has them."""
    parts = minibatches(sequences_D, config.num_substeps, np.random.default_rng([config.seed, step, 1]))
    return [normalize(part, config.loss_norm) for part in parts]


def minibatches(
    sequences_D: Sequence[TrainingSequence], num_substeps: int, rng: np.random.Generator
) -> list[list[TrainingSequence]]:
    """Shuffle whole trajectories into parts of nearly equal number; no part is empty, so there may be fewer."""
    if not sequences_D:
        return []
    names = sorted({s.trial_name for s in sequences_D})
    rng.shuffle(names)
    parts = [set(part.tolist()) for part in np.array_split(np.array(names), min(num_substeps, len(names)))]
    return [[s for s in sequences_D if s.trial_name in part] for part in parts]
