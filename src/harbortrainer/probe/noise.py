"""Judges gains against noise: rounding of bfloat16 and TF32, sums in another order.

Noise is in nats: the largest deviation seen among gains that should be equal. A verdict is only given where MARGIN
times the noise could not turn it.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np

MARGIN = 1.5  # times the noise: an effect may be off by that much
ENOUGH = 8.0  # times the noise: what an effect must gain to be judged
MOST_REPEATS = 12


def nearer(value: float, applied: float, ignored: float, noise: float, middle: float = 0.5) -> bool | None:
    """Return True when `value` is nearer to `set`, the effect of a setting, than to that of ignoring it.

    `middle`: where the border is, 0 = at `applied`, 1 = at `ignored`. None when noise could turn the answer.
    """
    gap = ignored - applied
    if not abs(gap) > 0 or not math.isfinite(value):
        return None
    place, error = (value - applied) / gap, MARGIN * noise / abs(gap)
    return True if place + error < middle else False if place - error > middle else None


def scatter(gains: Sequence[float]) -> float:
    """Get largest deviation of equal steps' gains, which may fall steadily, from a line or (6 and more) a parabola."""
    degree = 2 if len(gains) >= 6 else 1
    free = len(gains) - degree - 1
    if free <= 0:
        return 0.0
    steps = np.arange(len(gains))
    apart = np.array(gains) - np.polyval(np.polyfit(steps, gains, degree), steps)
    return float(np.abs(apart).max()) * math.sqrt(len(gains) / free)  # a fit follows part of the noise


def deviation(gains: Sequence[float]) -> float:
    """Return the largest deviation from the median, of gains that should all be about 0."""
    middle = statistics.median(gains)
    return max(abs(gain - middle) for gain in gains)


def repeats(noise: float, gain: float) -> int:
    """Return how often a step that gains `gain` must be repeated until noise cannot hide its effect."""
    return min(MOST_REPEATS, max(1, math.ceil(ENOUGH * noise / max(gain, 1e-9))))
