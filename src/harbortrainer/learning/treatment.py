"""The treatment of trials: a table by outcome, of which `outcome_policy` changes the graded ones; suspect trials."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, group_trajectories


class Treatment(StrEnum):
    TRAIN = "train"  # with the verifier's reward
    MASK = "mask"  # graded, but left out of its group
    REPLACE = "replace"  # by a fresh trial of the same task, within max_attempts; never scored
    DROP = "drop"


TREATMENTS = {
    Outcome.COMPLETED: Treatment.TRAIN,
    Outcome.MAX_TURNS: Treatment.TRAIN,
    Outcome.CONTEXT_LENGTH: Treatment.TRAIN,
    Outcome.AGENT_TIMEOUT: Treatment.TRAIN,
    Outcome.POLICY_ERROR: Treatment.TRAIN,
    Outcome.INFRASTRUCTURE_ERROR: Treatment.REPLACE,
    Outcome.VERIFIER_ERROR: Treatment.REPLACE,
    Outcome.UNASKED: Treatment.DROP,
    Outcome.CANCELLED: Treatment.DROP,
}
FAULTS = tuple(outcome for outcome, treatment in TREATMENTS.items() if treatment is not Treatment.TRAIN)
AFTER_OUTAGE = "after an outage"  # of a venue's service: ends a disposition "replaced by TRIAL" that costs no attempt
SUSPECT = "suspect"  # key of `outcome_policy` for trials with a mark, whatever their outcome
_GRADED = tuple(outcome for outcome in Outcome if outcome not in FAULTS)
_SUSPECT = f"give {Treatment.TRAIN}, {Treatment.MASK}, or a reward"


@dataclass(frozen=True, slots=True)
class OutcomePolicy:
    """The table with a run's changes. `rewards`: outcomes that are trained with this number instead of the grade.

    `suspect`: of marked trials: TRAIN as their outcome says, MASK, or the number that replaces their grade.
    """

    treatments: Mapping[Outcome, Treatment]
    rewards: Mapping[Outcome, float]
    suspect: Treatment | float = Treatment.TRAIN

    def replaces(self, outcome: Outcome) -> bool:
        return self.treatments[outcome] is Treatment.REPLACE

    def treat(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """The group for training: with replaced rewards, and masked trials among the lost."""
        return group_trajectories(group.task_name, [*map(self._treated, group.trajectories_G), *group.lost])

    def _treated(self, trajectory: Trajectory) -> Trajectory:
        """A mask wins over a reward, the reward of suspect trials over that of their outcome."""
        suspect = self.suspect if trajectory.suspect else Treatment.TRAIN
        if Treatment.MASK is suspect or self.treatments[trajectory.outcome] is not Treatment.TRAIN:
            return replace(trajectory, reward=None)
        given = self.rewards.get(trajectory.outcome) if isinstance(suspect, Treatment) else suspect
        return trajectory if given is None else replace(trajectory, reward=given)


DEFAULT = OutcomePolicy(TREATMENTS, {})  # an evaluation always has it


def outcome_policy(changes: Mapping[str, object]) -> OutcomePolicy:
    """`changes`: outcome name or SUSPECT -> train, mask, replace, or a reward; checked by `outcome_problems`."""
    given = changes.get(SUSPECT, Treatment.TRAIN)
    suspect = Treatment(str(given)) if (reward := _number(given)) is None else reward
    changes = {name: value for name, value in changes.items() if name != SUSPECT}
    rewards = {Outcome(name): number for name, value in changes.items() if (number := _number(value)) is not None}
    words = {Outcome(name): Treatment(str(value)) for name, value in changes.items() if _number(value) is None}
    return OutcomePolicy(TREATMENTS | words | dict.fromkeys(rewards, Treatment.TRAIN), rewards, suspect)


def outcome_problems(changes: Mapping[str, object]) -> list[str]:
    """A line for each invalid change."""
    return [line for name, value in changes.items() if (line := _problem(name, value))]


def _problem(name: str, value: object) -> str | None:
    field = f"outcome_policy.{name}={value}"
    if name == SUSPECT and str(value) == Treatment.REPLACE:
        return f"{field}: a trial may become suspect when its batch has ended, too late for a fresh one; {_SUSPECT}"
    if name != SUSPECT and name not in _GRADED:
        if name in FAULTS:
            return f"{field}: a trial without a grade has no reward to train on; it is replaced (max_attempts)"
        return f"{field}: no such outcome; one of {', '.join((*_GRADED, SUSPECT))}"
    number = _number(value)
    allowed = (Treatment.TRAIN, Treatment.MASK, Treatment.REPLACE)
    if str(value) in allowed or (number is not None and math.isfinite(number)):
        return None
    return f"{field}: {_SUSPECT if name == SUSPECT else f'give {", ".join(allowed)}, or a reward'}"


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(str(value))
    except ValueError:
        return None
