"""A run's budget: what it has spent, what that costs, and whether a cap is reached."""

from collections.abc import Callable, Mapping
from typing import Any

from src.budget.account import PURPOSES, Account, Spending
from src.budget.prices import Pricing
from src.config import Config

USD_STATUS, TOKENS_STATUS, CONTAINERS_STATUS = 80, 81, 82  # of the process; above those of sysexits.h
LABELS = {"left_out": "left out", "constant": "constant groups"}


class Budget:
    """Follows the ledger. Over the whole run, earlier processes included, and everything in it that is known."""

    def __init__(self, config: Config | None = None, pricing: Pricing | None = None) -> None:
        """None = no cap, no price."""
        self.account = Account(scores=config is not None and config.kl_penalty_coef > 0)
        self.pricing = pricing or Pricing()
        caps = (
            (0.0, 0.0, 0.0) if config is None else (config.max_usd, config.max_tokens_total, config.max_container_hours)
        )
        self._max_usd, self._max_tokens, self._max_hours = caps
        self._tell: Callable[[str, int], object] = lambda *_: None

    def count(self, record: Mapping[str, Any]) -> None:
        """A record of the ledger; from any thread."""
        self.account.count(record)
        if (over := self.over()) is not None:
            self._tell(*over)

    def watched_by(self, tell: Callable[[str, int], object]) -> None:
        """`tell(why, exit status)` is called, from any thread, at each record from now on that finds a cap reached."""
        self._tell = tell

    def over(self) -> tuple[str, int] | None:
        """Why the run is to end and with which exit status; None = it may go on."""
        total, usd = self.account.total, self.usd(self.account.total)
        if self._max_usd and usd is not None and usd >= self._max_usd:
            return f"max_usd={self._max_usd:g} is reached: {usd:.2f} USD are spent", USD_STATUS
        if self._max_tokens and total.tokens >= self._max_tokens:
            return f"max_tokens_total={self._max_tokens:g} is reached: {count(total.tokens)} are spent", TOKENS_STATUS
        if self._max_hours and (hours := total.container_sec / 3600) >= self._max_hours:
            return f"max_container_hours={self._max_hours:g} is reached: {hours:.2f} h are spent", CONTAINERS_STATUS
        return None

    def usd(self, spent: Spending) -> float | None:
        """Cost of a part of what was spent, prompts as if none was cached; one's own server by its tokens' share."""
        if not self.pricing.known:
            return None
        by_token = self.pricing.price.usd(spent) if self.pricing.price else 0.0
        share = spent.tokens / self.account.total.tokens if spent.tokens else float(spent is self.account.total)
        return by_token + self.pricing.usd_per_hour * self.account.hours * share

    def metrics(self) -> dict[str, float]:
        """`spend/*`, cumulative."""
        parts = {"": self.account.total} | {f"_{name}": spent for name, spent in self.account.by_purpose().items()}
        row: dict[str, float] = {}
        for name, spent in parts.items():
            row[f"spend/tokens{name}"] = float(spent.tokens)
            row[f"spend/container_sec{name}"] = spent.container_sec
            if (usd := self.usd(spent)) is not None:
                row[f"spend/usd{name}"] = usd
        return row

    def brief(self) -> str:
        """Tokens, and their cost where it is known, in a few words."""
        usd = self.usd(self.account.total)
        return count(self.account.total.tokens) + ("" if usd is None else f", {usd:.2f} USD")

    def summary(self) -> str:
        """One line."""
        total, parts = self.account.total, self.account.by_purpose()
        shares = [
            f"{spent.tokens / total.tokens:.0%} {LABELS.get(name, name)}"
            for name in PURPOSES
            if (spent := parts[name]).tokens
        ]
        waiting = total.tokens - sum(spent.tokens for spent in parts.values())
        if waiting > 0:
            shares.append(f"{waiting / total.tokens:.0%} of a batch that is not trained on yet")
        text = f"spent: {count(total.tokens)}{f' ({", ".join(shares)})' if shares else ''}"
        text += f", {total.container_sec / 3600:.2f} container hours"
        usd = self.usd(total)
        return text if usd is None else f"{text}, {usd:.2f} USD"


def count(tokens: float) -> str:
    """`1.2 M tokens`"""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.3g} {unit} tokens"
    return f"{tokens:.0f} tokens"
