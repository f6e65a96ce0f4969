"""The JSON file that describes a policy behind an endpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbortrainer.errors import UserError
from harbortrainer.other_models.chat_client import ANSWER_SEC, ApiAddress
from harbortrainer.setting import url_problem

_KINDS = {"url": str, "model": str, "key": str, "fields": dict, "thoughts": bool, "usd_per_million": dict}
_KINDS |= {"answer_sec": (int, float)}
_SECRET = ("key", "token", "secret", "authorization", "password")


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy's file. `thoughts`: keep those of the model in the trials; `usd_per_million`: prices of prompt and
    sampled tokens.

    `answer_sec`: for one answer; then the request is sent again.
    """

    place: ApiAddress
    thoughts: bool
    usd_per_million: Mapping[str, float]
    answer_sec: float


def read_policy(given: str, file: Path) -> dict[str, Any]:
    """Return the file's object, checked, and its key is set. Raises UserError."""
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{given}: cannot be read as JSON ({error}); give a file with url and model") from None
    _ = policy_of(given, value).place.token
    return value


def policy_of(given: str, value: Any) -> PolicyFile:
    """Raises UserError."""
    if problem := _problem(value):
        raise UserError(f"{given}: {problem}")
    place = ApiAddress("policy", value["url"], value["model"], value.get("key"), value.get("fields"))
    prices, seconds = value.get("usd_per_million", {}), value.get("answer_sec", ANSWER_SEC)
    return PolicyFile(place, value.get("thoughts", False), prices, seconds)


def _problem(value: Any) -> str:
    if not isinstance(value, dict) or not {"url", "model"} <= value.keys():
        return 'give an object with url and model: {"url": "https://HOST/v1", "model": NAME, "key": VARIABLE}'
    for name, given in value.items():
        if name not in _KINDS:
            return f"{name}: no such field; one of {', '.join(_KINDS)}"
        if not isinstance(given, _KINDS[name]):
            return f"{name}={given}: has another type (docs/evaluation.md)"
    if problem := url_problem(value["url"]):
        return f"url={value['url']}: {problem}"
    if secret := next((name for name in value.get("fields", {}) if name.lower().endswith(_SECRET)), None):
        return f"fields.{secret}: holds a secret, and the file is kept with the results; name a variable in key"
    prices = value.get("usd_per_million", {})
    numbers = [*prices.values(), value.get("answer_sec", ANSWER_SEC)]
    if prices.keys() - {"prompt", "sampled"} or not all(isinstance(one, int | float) and one >= 0 for one in numbers):
        return "usd_per_million and answer_sec: numbers from 0 on, prices by prompt and sampled"
    return ""
