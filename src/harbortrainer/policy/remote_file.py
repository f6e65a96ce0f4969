"""The JSON file that describes a policy behind an endpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbortrainer.errors import UserError
from harbortrainer.policy.endpoint import ANSWER_SEC, Place
from harbortrainer.setting import url_problem

_KEYS = {"url", "model", "key", "fields", "thoughts", "usd_per_million", "answer_sec"}
_SECRET = ("key", "token", "secret", "authorization", "password")


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """`thoughts`: keep those of the model in the trials; `usd_per_million`: prices of prompt and sampled tokens.

    `answer_sec`: for one answer; then the request is sent again.
    """

    place: Place
    thoughts: bool
    usd_per_million: Mapping[str, float]
    answer_sec: float


def read_policy(given: str, file: Path) -> dict[str, Any]:
    """The file's object, checked. Raises UserError, which begins with `given`."""
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{given}: cannot be read as JSON ({error}); give a file with url and model") from None
    policy_of(given, value)
    return value


def policy_of(given: str, value: Any) -> PolicyFile:
    """Raises UserError."""
    problem = _problem(value)
    if problem:
        raise UserError(f"{given}: {problem}")
    place = Place("policy", value["url"], value["model"], value.get("key"), value.get("fields"))
    prices = {name: float(price) for name, price in value.get("usd_per_million", {}).items()}
    return PolicyFile(place, value.get("thoughts", False), prices, float(value.get("answer_sec", ANSWER_SEC)))


def _problem(value: Any) -> str:
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("url", "model")):
        return 'give an object with url and model: {"url": "https://HOST/v1", "model": NAME, "key": VARIABLE}'
    if unknown := sorted(value.keys() - _KEYS):
        return f"{unknown[0]}: no such field; one of {', '.join(sorted(_KEYS))}"
    if problem := url_problem(value["url"]):
        return f"url={value['url']}: {problem}"
    if not isinstance(value.get("key", ""), str):
        return "key: the name of an environment variable"
    fields = value.get("fields", {})
    if not isinstance(fields, dict):
        return "fields: an object, the fields of each request"
    if secret := next((name for name in fields if name.lower().endswith(_SECRET)), None):
        return f"fields.{secret}: holds a secret, and the file is kept with the results; name a variable in key"
    if not isinstance(value.get("thoughts", False), bool):
        return "thoughts: true keeps the model's thoughts in the trials, false leaves them out"
    prices = value.get("usd_per_million", {})
    if (
        not isinstance(prices, dict)
        or prices.keys() - {"prompt", "sampled"}
        or not all(map(_positive, prices.values()))
    ):
        return 'usd_per_million: an object {"prompt": USD, "sampled": USD}, 0 or more'
    if not _positive(value.get("answer_sec", ANSWER_SEC)) or not value.get("answer_sec", ANSWER_SEC):
        return "answer_sec: a number above 0"
    return ""


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
