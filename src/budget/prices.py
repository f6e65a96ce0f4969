"""What tokens cost: the table of this repository, with its date, or a file of the user's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.budget.account import Spending
from src.config import Config
from src.errors import UserError

TABLE = Path(__file__).with_name("prices.json")
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    prefill: float
    sample: float
    train: float
    cached_prefill: float

    def usd(self, spent: Spending, cached: float = 0.0) -> float:
        """`cached`: share of the prompt tokens that the server had in its prefix cache."""
        prompt = self.prefill * (1 - cached) + self.cached_prefill * cached
        return (spent.prompt * prompt + spent.sampled * self.sample + spent.trained * self.train) / MILLION


@dataclass(frozen=True, slots=True)
class Pricing:
    """`price`: by token, None = not known; `usd_per_hour`: of one's own server; `source`: where the price is from."""

    price: Price | None = None
    usd_per_hour: float = 0.0
    source: str = ""

    @property
    def known(self) -> bool:
        return self.price is not None or self.usd_per_hour > 0


def pricing_of(config: Config) -> Pricing:
    """Raises UserError: an unreadable file, a model that it lacks, a cap in USD without any price."""
    price, source = None, ""
    if config.prices is not None:
        price, source = _of_file(config.prices, config.model_name), config.prices
    elif config.backend == "tinker":
        table = json.loads(TABLE.read_text())
        if (entry := table["models"].get(config.model_name)) is not None:
            price, source = _price(entry), f"src/budget/prices.json of {table['as_of']}"
    pricing = Pricing(price, config.server_usd_per_hour, source)
    if config.max_usd and not pricing.known:
        own = "" if config.backend == "tinker" else " or server_usd_per_hour=USD"
        raise UserError(f"max_usd={config.max_usd:g}: {no_price(config)}{own} (docs/budget.md)")
    return pricing


def no_price(config: Config) -> str:
    return f"no price known for {config.model_name}: give prices=FILE"


def _of_file(path: str, model_name: str) -> Price:
    """Of our form, of its `models` alone, or as Tinker publishes it: a list of objects with `tinker_id`."""
    try:
        value = json.loads(Path(path).expanduser().read_text())
    except OSError as error:
        raise UserError(f"prices={path}: cannot be read ({error.strerror}); give a JSON file of prices") from None
    except ValueError as error:
        raise UserError(f"prices={path}: no JSON ({error}); see docs/budget.md for its form") from None
    if isinstance(value, list):
        value = {entry.get("tinker_id"): entry for entry in value if isinstance(entry, dict)}
    models = value.get("models", value) if isinstance(value, dict) else {}
    entry = models.get(model_name) if isinstance(models, dict) else None
    if not isinstance(entry, dict):
        raise UserError(f"prices={path}: has no model {model_name}; add it, see docs/budget.md for the form")
    try:
        return _price(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"prices={path}: {model_name} needs prefill, sample and train, USD per million tokens, 0 or more ({error})"
        ) from None


def _price(entry: Mapping[str, Any]) -> Price:
    """Numbers, or as Tinker publishes them: "$1.87". Raises KeyError, ValueError."""
    number = {name: float(str(entry[name]).lstrip("$").replace(",", "")) for name in ("prefill", "sample", "train")}
    cached = entry.get("cached_prefill")
    number["cached_prefill"] = number["prefill"] if cached is None else float(str(cached).lstrip("$").replace(",", ""))
    if bad := [name for name, value in number.items() if not 0 <= value < float("inf")]:
        raise ValueError(f"{bad[0]}={number[bad[0]]:g}")
    return Price(**number)
