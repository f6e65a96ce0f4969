"""Declares a setting in one place: default, meaning, check, and what a continued run does with another value."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import chz

_KEY = "setting"
REQUIRED: Any = object()  # the default of a required setting


class Resume(Enum):
    """What a continued run, or a continued evaluation, does with another value of a setting."""

    ADDRESS = "names the run: not compared"
    FIXED = "refused: another value makes another run"
    NEXT_STEP = "taken from the first step not trained on; an evaluation refuses it"
    LENGTH = "taken; a learning rate that decays follows the new length"
    TASKS = "taken if the tasks' files are the same; an evaluation refuses it"
    HARMLESS = "taken: no number depends on it"


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on a value that is not None. `words` completes the error "NAME=VALUE: …"."""

    holds: Callable[[Any], bool]
    words: str


ABOVE_0 = Check(lambda value: value > 0, "must be above 0")
COUNTED = Check(lambda value: 0 < value <= 10**6, "must be above 0, 1000000 at most")  # what a step lists one by one
FROM_0 = Check(lambda value: value >= 0, "must be 0 or more")
PORT = Check(lambda port: 0 <= port < 65536, "a port, or 0 for a free one")
BELOW_1 = Check(lambda value: 0 <= value < 1, "must be in [0, 1)")


@dataclass(frozen=True, slots=True)
class Setting:
    default: Any
    doc: str
    check: Check | None
    resume: Resume

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


def field(
    default: Any = REQUIRED, doc: str = "", *, check: Check | None = None, resume: Resume = Resume.HARMLESS
) -> Any:
    """Return a field of a chz class. `doc`: the meaning, with unit and the value that turns it off."""
    about = {_KEY: Setting(default, doc, check, resume)}
    if default is REQUIRED:
        return chz.field(doc=doc, metadata=about)
    if isinstance(default, dict):
        return chz.field(default_factory=lambda: dict(default), doc=doc, metadata=about)
    return chz.field(default=default, doc=doc, metadata=about)


def settings(kind: type) -> dict[str, Setting]:
    """Return the settings of a class by name, those of its bases first."""
    return {name: (field.metadata or {})[_KEY] for name, field in chz.chz_fields(kind).items()}


def problems(values: Any) -> Iterator[str]:
    """Yield an error line for each value that is not finite, or that its check refuses."""
    for name, setting in settings(type(values)).items():
        value = getattr(values, name)
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{name}={shown(value)}: must be a finite number"
        elif setting.check is not None and value is not None and not setting.check.holds(value):
            yield f"{name}={shown(value)}: {setting.check.words}"


def changed(values: Any, *names: str) -> list[str]:
    """`name=value` of those of the named settings that do not have their default."""
    known = settings(type(values))
    found = {name: getattr(values, name) for name in names}
    return [f"{name}={shown(value)}" for name, value in found.items() if value != known[name].default]


def shown(value: Any) -> str:
    """Return a value as typed on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


UNTIL_SAVED = {"family": ""}  # what a run meant whose configuration lacks a setting, where its default is another


def url_problem(url: str) -> str:
    """Return what is wrong with the address of an HTTP service; "" = nothing that can be told without asking it."""
    if not url.startswith(("http://", "https://")):
        return "must start with http:// or https://"
    try:
        host, port = urlsplit(url).hostname, urlsplit(url).port
    except ValueError as error:  # "Port out of range 0-65535"
        return str(error)
    return "has no host" if not host else "port 0 takes no connection" if port == 0 else ""
