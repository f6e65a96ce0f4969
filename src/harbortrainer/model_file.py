"""A model behind an OpenAI-compatible API as a setting names it: a JSON file, or its text, which a run keeps."""

import functools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import chz

from harbortrainer.errors import UserError, refuse
from harbortrainer.setting import url_problem

SCRIPTED, BASE = "scripted", "base"
ANSWER_SEC = 120.0  # for one answer; then the request is sent again
_NUMBER = (int, float)
_KINDS: dict[str, Any] = {"url": str, "model": str, "key": str, "fields": dict}
_OWN: dict[str, dict[str, Any]] = {
    "judge": {"weight": _NUMBER, "taxonomy": (str, list)},
    "policy": {"thoughts": bool, "usd_per_million": dict, "answer_sec": _NUMBER},
}
_PAGES = {"policy": "docs/evaluation.md"}
_FORM = '{"url": "https://HOST/v1", "model": NAME, "key": VARIABLE, "fields": {}}'
Role = Literal["user", "judge", "policy"]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model's file. `key`: name of the variable that holds it; `fields`: of each request; `weight`, `taxonomy`: of
    a judge; the others of a policy: whether its thoughts are kept, prices of prompt and sampled tokens.
    """

    model: str
    url: str = ""
    key: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 0.1  # of the score, from -1 to 1, in the reward of training
    taxonomy: Any = None  # list of categories, or the file that has it
    thoughts: bool = False
    usd_per_million: Mapping[str, float] = field(default_factory=dict)
    answer_sec: float = ANSWER_SEC


def text_of(role: Role, given: str | None) -> str | None:
    """Get the text of the file that a setting names; what is no file's name is that text already. Raises UserError."""
    if given is None or given in (SCRIPTED, BASE) or given.lstrip().startswith("{"):
        return given
    try:
        value = json.loads(Path(given).expanduser().read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{role}={given}: cannot be read as JSON ({error}); give a file with {_FORM}") from None
    refuse(f"{role}={given}{problem.removeprefix(role)}" for problem in _problems(role, value))
    return json.dumps(value, sort_keys=True)


def model_of(role: Role, given: str | None) -> ModelFile | None:
    """Return what a setting says; None: nothing. Raises UserError."""
    return None if given is None else _read(role, text_of(role, given) or "")


@functools.lru_cache(maxsize=64)
def _read(role: Role, text: str) -> ModelFile:
    if text in (SCRIPTED, BASE):
        return ModelFile(text)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{role}: no JSON ({error}); give a file with {_FORM}") from None
    refuse(_problems(role, value))
    return ModelFile(**value)


def _problems(role: Role, value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or not isinstance(value.get("model"), str):
        yield f"{role}: give an object with {_FORM}"
        return
    known = _KINDS | _OWN.get(role, {})
    for name, given in value.items():
        if name not in known:
            yield f"{role}: {name}: no such field; one of {', '.join(known)}"
        elif given is not None and (
            not isinstance(given, known[name]) or (isinstance(given, bool) and known[name] is not bool)
        ):
            yield f"{role}: {name}={given}: has another type ({_PAGES.get(role, 'docs/other_models.md')})"
    if value["model"] in (SCRIPTED, BASE) and role == "user":
        return
    if not isinstance(url := value.get("url"), str):
        yield f"{role}: model={value['model']}: give the url of the OpenAI-compatible API that serves it"
    elif problem := url_problem(url):
        yield f"{role}: url={url}: {problem}"
    prices = value.get("usd_per_million", {})
    if isinstance(prices, dict) and (strange := prices.keys() - {"prompt", "sampled"}):
        yield f"{role}: usd_per_million.{min(strange)}: no such price; give prompt and sampled"
        return
    numbers = {name: value.get(name, 0) for name in ("weight", "answer_sec")}
    numbers |= {f"usd_per_million.{name}": price for name, price in prices.items()} if isinstance(prices, dict) else {}
    for name, number in numbers.items():
        if isinstance(number, int | float) and not 0 <= number < math.inf:
            yield f"{role}: {name}={number}: must be 0 or more"


def with_texts[C](config: C) -> C:
    """Return settings with the texts of the files that they name, so that a run has what it began with.

    Raises UserError.
    """
    roles: tuple[Role, ...] = ("user", "judge")
    named = {role: getattr(config, role, None) for role in roles}
    texts = {role: text_of(role, named[role]) for role in roles}
    changed = {role: texts[role] for role in roles if texts[role] != named[role]}
    return chz.replace(config, **changed) if changed else config


def former(saved: Mapping[str, Any]) -> dict[str, str]:
    """`user` and `judge` of a run of an earlier version, which had a setting for each of their parts."""
    found: dict[str, str] = {}
    for role in ("user", "judge"):
        if role in saved or (model := saved.get(f"{role}_model")) is None:
            continue
        parts = {"model": model, "url": saved.get(f"{role}_url"), "key": saved.get(f"{role}_key")}
        parts |= {"fields": saved.get(f"{role}_kwargs") or None}
        if role == "judge":
            parts |= {"weight": saved.get("judge_weight"), "taxonomy": saved.get("taxonomy")}
        given = {name: value for name, value in parts.items() if value is not None}
        found[role] = model if [*given] == ["model"] else json.dumps(given, sort_keys=True)
    return found
