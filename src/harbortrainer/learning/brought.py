"""Functions that a user brings to a run, by name: a group's advantages, an addition to a reward, the loss."""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import REWARD, Trajectory, TrajectoryGroup
from harbortrainer.plugins import Brought, bring

FIELDS = ("advantage", "reward", "loss")  # settings that name one


def function(field: str, text: str) -> Brought:
    """Return the function that a setting names. Raises UserError for one that cannot be found or called."""
    if field == "loss" and importlib.util.find_spec("torch") is None:
        raise UserError(f"loss={text}: torch, which differentiates it, is not installed; install 'harbortrainer[loss]'")
    found = bring(field, text)
    if not callable(found.value):
        raise UserError(f"{found.given}: it is no function, but of type {type(found.value).__name__}")
    return found


def functions(config: Config) -> dict[str, Brought]:
    """Return the functions that the settings name, by field. Raises UserError."""
    named = {field: getattr(config, field) for field in FIELDS if field != "advantage" or config.own_advantage}
    return {field: function(field, text) for field, text in named.items() if text is not None}


def advantages_of(brought: Brought, group: TrajectoryGroup) -> list[np.ndarray]:
    """Get function's answer for (rewards, trajectories): for each trajectory an array of one number, or of one a turn.

    Raises UserError for another form, or numbers that are not finite.
    """
    answer: Sequence[Any] = brought.value(list(group.rewards_G), [*map(_copied, group.trajectories_G)])
    try:
        arrays_G = [np.atleast_1d(np.asarray(one, np.float64)) for one in answer]
    except (TypeError, ValueError) as error:
        raise _wrong(brought, group, f"no numbers ({error})") from None
    if len(arrays_G) != len(group.trajectories_G):
        raise _wrong(brought, group, f"{len(arrays_G)} advantages")
    for trajectory, array in zip(group.trajectories_G, arrays_G, strict=True):
        if array.ndim != 1 or len(array) not in (1, len(trajectory.turns)):
            raise _wrong(brought, group, f"shape {array.shape} for the {len(trajectory.turns)} turns of one")
        if not np.isfinite(array).all():
            raise _wrong(brought, group, "a number that is not finite")
    return arrays_G


def with_reward(brought: Brought, trajectory: Trajectory) -> Trajectory:
    """Return a graded trajectory with what the function adds to its reward. Raises UserError for no finite number."""
    answer = brought.value(_copied(trajectory))
    if isinstance(answer, bool | int | float | np.number) and math.isfinite(answer):
        return replace(trajectory, shaping=trajectory.shaping | {REWARD: float(answer)})
    raise UserError(f"{brought.given}: returned {answer!r} for {trajectory.trial_name}; return a finite number")


def _copied(trajectory: Trajectory) -> Trajectory:
    """The trajectory with mappings of its own, which a function may change."""
    own = {name: dict(getattr(trajectory, name)) for name in ("times", "stats", "shaping")}
    return replace(trajectory, **own)


def _wrong(brought: Brought, group: TrajectoryGroup, what: str) -> UserError:
    return UserError(
        f"{brought.given}: returned {what} for a group of {len(group.trajectories_G)} trajectories of "
        f"{group.task_name}; return for each of them one finite number, or a list of one for each of its turns"
    )
