"""Learning rate of each optimizer step; the client decides it, the server applies it."""

import math
from typing import Literal


def learning_rate(
    step: int,
    total_steps: int,
    *,
    peak: float,
    schedule: Literal["constant", "linear", "cosine"],
    warmup_steps: int = 0,
) -> float:
    """Rate of optimizer step `step` (from 0) of `total_steps`: linear warm-up to `peak`, then the schedule towards 0.

    The last step's rate is above 0. cosine: arXiv 1608.03983, one half period.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return peak * (1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)
