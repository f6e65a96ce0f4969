"""Group-relative advantages: what a trial's reward is worth against the other trials of its task."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from src.learning.trajectory import is_constant


def group_advantages(
    rewards_G: Sequence[float], *, baseline: Literal["mean", "leave_one_out"] = "mean", by_std: bool = False
) -> list[float]:
    """Advantage of each member of one group; zeros for a constant group and for a group of one.

    mean:           A_i = r_i - mean(r)              (Dr. GRPO, arXiv 2503.20783)
    leave_one_out:  A_i = r_i - mean(r without r_i)  (RLOO, arXiv 2402.14740)
    by_std:         A_i / std(r), population standard deviation  (GRPO, arXiv 2402.03300)
    """
    rewards = np.asarray(rewards_G, np.float64)
    n = len(rewards)
    if is_constant(rewards_G):
        return [0.0] * n
    advantages = rewards - rewards.mean()
    if baseline == "leave_one_out":
        advantages *= n / (n - 1)
    return (advantages / rewards.std() if by_std else advantages).tolist()
