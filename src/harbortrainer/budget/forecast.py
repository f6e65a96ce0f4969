"""Ranges of what a run will use, and their cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harbortrainer.budget.account import Spending
from harbortrainer.budget.budget import Pricing


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds. `high` None = no bound is known; `mean` None = bounds only."""

    low: float
    high: float | None
    mean: float | None = None

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, _sum(self.high, other.high), _sum(self.mean, other.mean))

    def __mul__(self, factor: float) -> "Range":
        high, mean = (None if value is None else value * factor for value in (self.high, self.mean))
        return Range(self.low * factor, high, mean)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Ranges of what a run will use. `cached`: share of prompt tokens that repeat an earlier prompt of their trial.

    `beside`: prompt and sampled tokens of simulated user and judge, by name.
    """

    trials: Range
    prompt: Range
    sampled: Range
    trained: Range
    container_sec: Range
    wall_sec: Range
    cached: float
    source: str
    assumptions: tuple[str, ...] = ()
    beside: Mapping[str, tuple[Range, Range]] = field(default_factory=dict)

    @property
    def tokens(self) -> Range:
        return sum((prompt + sampled for prompt, sampled in self.beside.values()), self._own)

    @property
    def _own(self) -> Range:
        return self.prompt + self.sampled + self.trained

    def usd(self, pricing: Pricing) -> Range | None:
        """Return cost: low if the server caches every repeated prompt, mean and high if none. None without a price."""
        if not pricing.known:
            return None
        cost = Range(0.0, 0.0, 0.0)
        if pricing.price is not None:
            cost += Range(
                self._usd(pricing, "low", self.cached) or 0.0, *(self._usd(pricing, n) for n in ("high", "mean"))
            )
        return cost + self.wall_sec * (pricing.usd_per_hour / 3600) if pricing.usd_per_hour else cost

    def _usd(self, pricing: Pricing, end: str, cached: float = 0.0) -> float | None:
        """The cost of the tokens at one end of the ranges; None where one has no bound."""
        kinds = {"prompt": self.prompt, "sampled": self.sampled, "trained": self.trained}
        for name, (prompt, sampled) in self.beside.items():
            kinds |= {f"{name}_prompt": prompt, f"{name}_sampled": sampled}
        tokens = {name: getattr(kind, end) for name, kind in kinds.items()}
        return None if None in tokens.values() else pricing.of_tokens(Spending(**tokens), cached)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
