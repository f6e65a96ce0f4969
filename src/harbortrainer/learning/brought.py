"""Functions that a user brings to a run, by name: how a group's advantages are made, and what is added to a reward."""

import functools
import hashlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import REWARD, Trajectory, TrajectoryGroup

FIELDS = ("advantage", "reward")  # settings that name one
FORM = "give MODULE:FUNCTION or path/to/FILE.py:FUNCTION"
KEY = "brought"  # in effective.json
SHORT = 12  # characters of a digest


@dataclass(frozen=True, slots=True)
class Brought:
    """A function of the user's. `given`: the setting as typed; `source`: version and digest of the code."""

    given: str
    source: str
    call: Callable[..., Any]


def brought(config: Config) -> dict[str, Brought]:
    """The functions that the settings name, by field. Raises UserError for one that cannot be found."""
    return {field: bring(field, text) for field in FIELDS if (text := getattr(config, field)) is not None}


@functools.cache
def bring(field: str, text: str) -> Brought:
    """Import the function that a setting names. Raises UserError: no such module, file or function.

    An error within the module is raised as it is.
    """
    given = f"{field}={text}"
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UserError(f"{given}: {FORM}")
    module = _of_file(given, place) if place.endswith(".py") else _of_module(given, place)
    if not callable(found := getattr(module, name, None)):
        raise UserError(f"{given}: {place} has no function {name}")
    return Brought(given, _source(module), found)


def advantages_of(function: Brought, group: TrajectoryGroup) -> list[np.ndarray]:
    """The function's answer for (rewards, trajectories): for each trajectory an array of one number, or of one a turn.

    Raises UserError for another form, or numbers that are not finite.
    """
    answer: Sequence[Any] = function.call(list(group.rewards_G), list(group.trajectories_G))
    try:
        arrays_G = [np.atleast_1d(np.asarray(one, np.float64)) for one in answer]
    except (TypeError, ValueError) as error:
        raise _wrong(function, group, f"no numbers ({error})") from None
    if len(arrays_G) != len(group.trajectories_G):
        raise _wrong(function, group, f"{len(arrays_G)} advantages")
    for trajectory, array in zip(group.trajectories_G, arrays_G, strict=True):
        if array.ndim != 1 or len(array) not in (1, len(trajectory.turns)):
            raise _wrong(function, group, f"shape {array.shape} for the {len(trajectory.turns)} turns of one")
        if not np.isfinite(array).all():
            raise _wrong(function, group, "a number that is not finite")
    return arrays_G


def with_reward(function: Brought, trajectory: Trajectory) -> Trajectory:
    """A graded trajectory with what the function adds to its reward. Raises UserError for no finite number."""
    answer = function.call(trajectory)
    if isinstance(answer, bool | int | float | np.number) and math.isfinite(answer):
        return replace(trajectory, shaping=trajectory.shaping | {REWARD: float(answer)})
    raise UserError(f"{function.given}: returned {answer!r} for {trajectory.trial_name}; return a finite number")


def sources(config: Config) -> dict[str, str]:
    """From which code the functions are, by field: the part KEY of effective.json."""
    return {field: one.source for field, one in brought(config).items()}


def check_same(functions: dict[str, Brought], before: dict[str, str]) -> None:
    """Raises UserError when a continued run would go on with other code than `before`, as `sources` told it."""
    for field, one in functions.items():
        if before.get(field, one.source) != one.source:
            raise UserError(
                f"{one.given}: its code has changed since the run began ({before[field]}, now {one.source}); put the "
                "former code back, or start a new run"
            )


def _wrong(function: Brought, group: TrajectoryGroup, what: str) -> UserError:
    return UserError(
        f"{function.given}: returned {what} for a group of {len(group.trajectories_G)} trajectories of "
        f"{group.task_name}; return for each of them one finite number, or a list of one for each of its turns"
    )


def _of_file(given: str, place: str) -> ModuleType:
    path = Path(place).expanduser().resolve()
    spec = importlib.util.spec_from_file_location(f"harbortrainer_brought_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{given}: there is no file {path}; {FORM}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _of_module(given: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the module lacks another one
        raise UserError(f"{given}: there is no module {error.name}; install it, or {FORM}") from None


def _source(module: ModuleType) -> str:
    """`NAME VERSION sha256:…` of the module's distribution, if it has one, and of its file."""
    file = Path(str(module.__file__))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:SHORT]
    name = module.__name__.partition(".")[0]
    try:
        return f"{name} {metadata.version(name)} sha256:{digest}"
    except metadata.PackageNotFoundError:  # a file, or a folder that was not installed
        return f"sha256:{digest}"
