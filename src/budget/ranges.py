"""From values of the past to a range for what comes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from src.evaluation.student import student_quantile

LEVEL = 0.95
PRIOR_WEIGHT, TIME_WEIGHT = 3, 8  # values that the assumed spread counts for


@dataclass(frozen=True, slots=True)
class Range:
    """`high` None = no bound is known."""

    low: float
    high: float | None

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, None if None in (self.high, other.high) else _sum(self.high, other.high))

    def __mul__(self, factor: float) -> "Range":
        return Range(self.low * factor, None if self.high is None else self.high * factor)

    @property
    def ratio(self) -> float | None:
        """high / low; None where either is none."""
        return self.high / self.low if self.high is not None and self.low > 0 else None


def predict(values: Sequence[float], count: int, *, spread: float, least: float, widen: float = 1.0) -> Range:
    """The mean of `count` further values: a 95 % prediction interval for the mean of so many draws of one normal law,
    m ± t s sqrt(1/count + 1/n) (Hahn & Meeker 1991, 4.3).

    With few values their own deviation says little: s² is pooled with (`spread` m)², which counts for three more, as
    under a scaled inverse chi-square prior (Gelman et al., Bayesian Data Analysis, 2.6). `widen` multiplies s: values
    of larger batches vary less. The half width is at least `least` m. Raises ValueError without any value.
    """
    if not len(values):
        raise ValueError("no value to predict from")
    n, mean = len(values), float(np.mean(values))
    own = float(np.sum((np.asarray(values, float) - mean) ** 2))
    dof = n - 1 + PRIOR_WEIGHT
    deviation = widen * np.sqrt((own + PRIOR_WEIGHT * (spread * mean) ** 2) / dof)
    half = student_quantile(LEVEL, dof) * deviation * np.sqrt(1 / max(count, 1) + 1 / n)
    half = max(float(half), least * mean)
    lowest = min(0.5 * min(values), mean - least * mean)  # an interval of a normal law may go below anything seen
    return Range(max(mean - half, lowest, 0.0), mean + half)


def predict_time(values: Sequence[float], *, spread: float) -> Range:
    """One further duration: the same interval of its logarithm, as what delays multiplies. Raises ValueError.

    s² of the logarithms is pooled with `spread`², which counts for TIME_WEIGHT values: machines are shared, and a few
    runs in a row see the same neighbours.
    """
    if not len(values) or min(values) <= 0:
        raise ValueError("no duration to predict from")
    logs = np.log(values)
    n, dof = len(logs), len(logs) - 1 + TIME_WEIGHT
    deviation = np.sqrt((float(np.sum((logs - logs.mean()) ** 2)) + TIME_WEIGHT * spread**2) / dof)
    factor = float(np.exp(student_quantile(LEVEL, dof) * deviation * np.sqrt(1 + 1 / n)))
    middle = float(np.exp(logs.mean()))
    return Range(middle / factor, middle * factor)


def _sum(one: float | None, other: float | None) -> float:
    return (one or 0.0) + (other or 0.0)
