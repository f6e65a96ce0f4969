"""One setting of a command: its default, meaning, check, and what a continued run may do with it, in one place."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import chz

_KEY = "setting"
REQUIRED: Any = object()  # the default of a setting that must be given


class Resume(Enum):
    """What a continued run, or a continued evaluation, does with another value of a setting."""

    ADDRESS = "where the run is and how it was asked for: not compared"
    FIXED = "another value is another run: refused"
    NEXT_STEP = "taken from the first step that was not trained on; an evaluation refuses it"
    LENGTH = "taken; a learning rate that decays follows the new length"
    TASKS = "taken, the files of the tasks are compared instead; an evaluation refuses it"
    HARMLESS = "taken: no number depends on it"


@dataclass(frozen=True, slots=True)
class Check:
    """What a value must satisfy. `words` completes the line "NAME=VALUE: …". None is never checked."""

    holds: Callable[[Any], bool]
    words: str


ABOVE_0 = Check(lambda value: value > 0, "must be above 0")
FROM_0 = Check(lambda value: value >= 0, "must be 0 or more")
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
    """A field of a chz class. `doc` gives the unit and the value that switches the setting off."""
    about = {_KEY: Setting(default, doc, check, resume)}
    if default is REQUIRED:
        return chz.field(doc=doc, metadata=about)
    if isinstance(default, dict):
        return chz.field(default_factory=lambda: dict(default), doc=doc, metadata=about)
    return chz.field(default=default, doc=doc, metadata=about)


def settings(kind: type) -> dict[str, Setting]:
    """Every setting of a class by name, those of its bases first."""
    return {name: (field.metadata or {})[_KEY] for name, field in chz.chz_fields(kind).items()}


def problems(values: Any) -> Iterator[str]:
    """A line for each value that its own check refuses."""
    for name, setting in settings(type(values)).items():
        value = getattr(values, name)
        if setting.check is not None and value is not None and not setting.check.holds(value):
            yield f"{name}={shown(value)}: {setting.check.words}"


def shown(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
