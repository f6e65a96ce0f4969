"""What a run will use, and its cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harbortrainer.budget.account import Spending
from harbortrainer.budget.budget import Pricing

Amount = float | None  # None = no bound is known


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run will use: an estimate, or with `assumptions` the most that its limits allow. Times are seconds.

    `beside`: prompt and sampled tokens of simulated user and judge, by name.
    """

    trials: float
    prompt: Amount
    sampled: Amount
    trained: Amount
    container_sec: Amount
    wall_sec: Amount
    source: str
    assumptions: tuple[str, ...] = ()
    beside: Mapping[str, tuple[Amount, Amount]] = field(default_factory=dict)

    @property
    def tokens(self) -> Amount:
        kinds = [self.prompt, self.sampled, self.trained, *(one for pair in self.beside.values() for one in pair)]
        return total(*kinds)

    def usd(self, pricing: Pricing) -> Amount:
        """Return the cost, with no prompt cached; None without a price or a bound."""
        kinds = {"prompt": self.prompt, "sampled": self.sampled, "trained": self.trained}
        for name, (prompt, sampled) in self.beside.items():
            kinds |= {f"{name}_prompt": prompt, f"{name}_sampled": sampled}
        known = {name: tokens for name, tokens in kinds.items() if tokens is not None}
        unbounded = (pricing.price is not None and len(known) < len(kinds)) or (
            pricing.usd_per_hour > 0 and self.wall_sec is None
        )
        if not pricing.known or unbounded:
            return None
        return pricing.of_tokens(Spending(**known)) + (self.wall_sec or 0.0) * pricing.usd_per_hour / 3600


def total(*amounts: Amount) -> Amount:
    """Return the sum; None where one has no bound."""
    known = [one for one in amounts if one is not None]
    return sum(known) if len(known) == len(amounts) else None
