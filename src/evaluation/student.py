"""Quantiles of Student's t distribution, for whole degrees of freedom."""

import math
from functools import lru_cache
from statistics import NormalDist

NORMAL_FROM = 2000  # degrees of freedom; there t and normal quantiles agree to 3 digits after the point
LARGEST = 1e4  # t beyond which nobody asks


def normal_quantile(level: float) -> float:
    """z with P(|Z| <= z) = `level`."""
    return NormalDist().inv_cdf((1 + level) / 2)


@lru_cache(maxsize=4096)
def student_quantile(level: float, degrees: int) -> float:
    """t with P(|T| <= t) = `level`, by bisection, to 1e-9. Raises ValueError below one degree of freedom."""
    if degrees < 1:
        raise ValueError(f"student_quantile: {degrees} degrees of freedom")
    if degrees >= NORMAL_FROM:
        return normal_quantile(level)
    low, high = 0.0, LARGEST
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if student_within(middle, degrees) < level else (low, middle)
    return (low + high) / 2


def student_within(t: float, degrees: int) -> float:
    """P(|T| <= t): the finite series of Abramowitz & Stegun (1964), 26.7.3 for odd and 26.7.4 for even degrees."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    if degrees == 1:
        return 2 * angle / math.pi
    odd = degrees % 2
    term = total = math.cos(angle) if odd else 1.0
    for i in range(3 if odd else 2, degrees - 1, 2):
        term *= square * (i - 1) / i
        total += term
    part = math.sin(angle) * total
    return 2 / math.pi * (angle + part) if odd else part
