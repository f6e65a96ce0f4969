"""A run at one moment, as the panel shows it."""

from collections.abc import Mapping
from dataclasses import dataclass

from src.rollout.states import TrialState


@dataclass(frozen=True, slots=True)
class Event:
    at: float  # seconds since the start
    text: str


@dataclass(frozen=True, slots=True)
class Trials:
    """Of one batch or evaluation. `failed`: places given up without a grade; `states`: trials that run."""

    training: bool  # not an evaluation
    total: int
    done: int
    failed: int
    replaced: int
    queued: int
    states: Mapping[TrialState, int]
    groups: int  # with a grade
    with_signal: int  # of them, those whose rewards differ
    reward: float | None  # mean so far
    tokens: int  # sampled


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Times in seconds. `step`: steps that are done; `held_out`: after which step, mean reward, standard error."""

    version: int
    elapsed: float
    to_come: float | None
    estimated_from: int  # steps
    step: int
    total_steps: int
    doing: str
    doing_for: float
    rewards: tuple[float, ...]
    held_out: tuple[int, float, float] | None
    trials: Trials | None
    tokens_per_second: float
    events: tuple[Event, ...]
