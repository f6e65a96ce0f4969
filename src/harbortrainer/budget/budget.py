"""Prices of tokens, from this repository's dated table or a user's file, and the caps on a run's spending."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harbortrainer.budget.account import PURPOSES, Account, Spending
from harbortrainer.config import Config, RunSettings
from harbortrainer.errors import UserError
from harbortrainer.model_file import Role, model_of
from harbortrainer.sft_config import SftConfig

TABLE = Path(__file__).with_name("prices.json")
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    prefill: float
    sample: float
    train: float

    def usd(self, spent: Spending) -> float:
        """Return the cost, with no prompt cached: a bill is not higher."""
        return (spent.prompt * self.prefill + spent.sampled * self.sample + spent.trained * self.train) / MILLION


@dataclass(frozen=True, slots=True)
class Pricing:
    """Prices. `price`: by token, None = not known; `usd_per_hour`: of a self-hosted server; `source`: of the price.

    `beside`: prices of simulated user and judge, as far as they are known; without one their tokens cost nothing here.
    """

    price: Price | None = None
    usd_per_hour: float = 0.0
    source: str = ""
    beside: Mapping[str, Price] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        return self.price is not None or self.usd_per_hour > 0

    def of_tokens(self, spent: Spending) -> float:
        """Return USD of all tokens with a known price."""
        own = self.price.usd(spent) if self.price is not None else 0.0
        return own + sum(price.usd(Spending(*spent.beside(name))) for name, price in self.beside.items())


def pricing_of(config: RunSettings) -> Pricing:
    """Get the prices of a run. Raises UserError: an unreadable file, a missing model, a cap in USD without a price."""
    price, source, an_hour = None, "", 0.0
    if config.prices is not None:
        an_hour, source = _of_an_hour(config.prices, config.backend), config.prices
        if not an_hour or config.model_name in _models_of(config.prices):
            price = _of_file(config.prices, config.model_name)
    elif config.backend == "tinker":
        table = json.loads(TABLE.read_text())
        if (entry := table["models"].get(config.model_name)) is not None:
            price, source = _price(entry), f"src/harbortrainer/budget/prices.json of {table['as_of']}"
    pricing = Pricing(price, an_hour, source, _beside(config, price))
    if config.max_usd and not pricing.known:
        own = "" if config.backend == "tinker" else " with the model, or with usd_per_hour of the server"
        raise UserError(f"max_usd={config.max_usd:g}: {no_price(config)}{own} (docs/cost.md)")
    return pricing


def _beside(config: RunSettings, price: Price | None) -> dict[str, Price]:
    """Prices of simulated user and judge: the policy's for the base model, those of the file `prices` for others."""
    if not isinstance(config, Config):
        return {}
    roles: tuple[Role, ...] = ("user", "judge")
    named = {role: model_of(role, getattr(config, role)) for role in roles}
    models = {role: model.model for role, model in named.items() if model is not None}
    found = {name: price for name, model in models.items() if model == "base" and price is not None}
    if config.prices is not None:
        known = _models_of(config.prices)
        found |= {name: _of_file(config.prices, model) for name, model in models.items() if model in known}
    return found


def no_price(config: RunSettings) -> str:
    return f"no price known for {config.model_name}: give prices=FILE"


def _of_file(path: str, model_name: str) -> Price:
    """The price of a model that the file must have. Raises UserError."""
    entry = _models_of(path).get(model_name)
    if not isinstance(entry, dict):
        raise UserError(f"prices={path}: has no model {model_name}; add it, see docs/cost.md for the form")
    try:
        return _price(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"prices={path}: {model_name} needs prefill, sample and train, USD per million tokens, 0 or more ({error})"
        ) from None


def _of_an_hour(path: str, backend: str) -> float:
    """USD that an hour of the server costs by the file; 0 where it says nothing. Raises UserError."""
    value = _read(path)
    hour = value.get("usd_per_hour", 0.0) if isinstance(value, dict) else 0.0
    if isinstance(hour, bool) or not isinstance(hour, int | float) or not 0 <= hour < math.inf:
        raise UserError(f"prices={path}: usd_per_hour={hour}: give USD an hour of your server, 0 or more")
    if hour and backend == "tinker":
        raise UserError(f"prices={path}: usd_per_hour={hour:g}: Tinker cloud is paid by token; leave it out")
    return float(hour)


def _read(path: str) -> Any:
    """The JSON value of the file. Raises UserError."""
    try:
        return json.loads(Path(path).expanduser().read_text())
    except OSError as error:
        raise UserError(f"prices={path}: cannot be read ({error.strerror}); give a JSON file of prices") from None
    except ValueError as error:
        raise UserError(f"prices={path}: no JSON ({error}); see docs/cost.md for its form") from None


def _models_of(path: str) -> Mapping[Any, Any]:
    """Read the form of prices.json, its `models` alone, or Tinker's published list of objects with `tinker_id`."""
    value = _read(path)
    if isinstance(value, list):
        value = {str(entry.get("tinker_id")): entry for entry in value if isinstance(entry, dict)}
    models = value.get("models", value) if isinstance(value, dict) else {}
    return models if isinstance(models, dict) else {}


def _price(entry: Mapping[str, Any]) -> Price:
    """Read numbers, or Tinker's published form "$1.87". Raises KeyError, ValueError."""
    number = {name: float(str(entry[name]).lstrip("$").replace(",", "")) for name in ("prefill", "sample", "train")}
    if bad := [name for name, value in number.items() if not 0 <= value < float("inf")]:
        raise ValueError(f"{bad[0]}={number[bad[0]]:g}")
    return Price(**number)


USD_STATUS = 80  # of the process; above those of sysexits.h
LABELS = {"left_out": "left out", "constant": "constant groups"}


class Budget:
    """The spending of a whole run, from its ledger's records, against its caps. Without config no caps apply."""

    def __init__(self, config: RunSettings | None = None, pricing: Pricing | None = None) -> None:
        self.account = Account(scores=isinstance(config, Config) and config.kl_penalty_coef > 0)
        self.pricing = pricing or Pricing()
        self._caps = config
        self._over_cap: Callable[[str, int], object] = lambda *_: None

    def count(self, record: Mapping[str, Any]) -> None:
        """Count a record of the ledger; from any thread."""
        self.account.count(record)
        if (over := self.over()) is not None:
            self._over_cap(*over)

    def on_cap(self, call: Callable[[str, int], object]) -> None:
        """Call `call(why, exit status)`, from any thread, at each later record that finds a cap reached."""
        self._over_cap = call

    def over(self) -> tuple[str, int] | None:
        """Return why a cap ends the run, and the exit status; None while the run may continue."""
        if (caps := self._caps) is None:
            return None
        usd = self.usd(self.account.total)
        if caps.max_usd and usd is not None and usd >= caps.max_usd:
            return f"max_usd={caps.max_usd:g} is reached: {usd:.2f} USD are spent", USD_STATUS
        return None

    def usd(self, spent: Spending) -> float | None:
        """Return the cost of a part of the spending, without a prefix cache; a server's hours are shared by tokens."""
        if not self.pricing.known:
            return None
        by_token = self.pricing.of_tokens(spent)
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
        """Return tokens, and their cost where it is known."""
        usd = self.usd(self.account.total)
        return count(self.account.total.tokens) + ("" if usd is None else f", {usd:.2f} USD")

    def summary(self) -> str:
        """Return one line."""
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
        if not isinstance(self._caps, SftConfig):
            text += f", {total.container_sec / 3600:.2f} container hours"
        usd = self.usd(total)
        return text if usd is None else f"{text}, {usd:.2f} USD"


def count(tokens: float) -> str:
    """`1.2 M tokens`"""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.3g} {unit} tokens"
    return f"{tokens:.0f} tokens"
