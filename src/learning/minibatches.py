"""One batch -> `num_substeps` shuffled minibatches."""

from collections.abc import Sequence

import numpy as np

from src.learning.datums import TrainingSequence


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
