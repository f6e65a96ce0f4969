"""The treatment of trials: a table by outcome, of which `outcome_policy` changes the graded ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, group_trajectories


class Treatment(StrEnum):
    TRAIN = "train"  # with the verifier's reward
    MASK = "mask"  # graded, but left out of its group
    REPLACE = "replace"  # by a fresh trial of the same task, within three trials; never scored
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
UNSUPPLIED = "image: "  # begins the detail of a trial that could not run, since its task's image cannot be made;
PASSING = "image (network, disk or daemon at fault): "  # perhaps it can later
UNFIT = "the first prompt leaves no room for an answer: "  # begins that of one which could not ask: nor can others
FIRST, MOST_FAILED, SHOWN = 30, 1 / 3, 5  # so many of a run's first tasks may fail; named in an error
AFTER_OUTAGE = "after an outage"  # of a venue's service: ends a disposition "replaced by TRIAL" that costs no attempt
_GRADED = tuple(outcome for outcome in Outcome if outcome not in FAULTS)


@dataclass(frozen=True, slots=True)
class OutcomePolicy:
    """The table with a run's changes. `rewards`: outcomes that are trained with this number instead of the grade."""

    treatments: Mapping[Outcome, Treatment]
    rewards: Mapping[Outcome, float]

    def replaces(self, outcome: Outcome) -> bool:
        return self.treatments[outcome] is Treatment.REPLACE

    def treat(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """Return the group for training: with replaced rewards, and masked trials among the lost."""
        return group_trajectories(group.task_name, [*map(self._treated, group.trajectories_G), *group.lost])

    def _treated(self, trajectory: Trajectory) -> Trajectory:
        if self.treatments[trajectory.outcome] is not Treatment.TRAIN:
            return replace(trajectory, reward=None)
        given = self.rewards.get(trajectory.outcome)
        return trajectory if given is None else replace(trajectory, reward=given)


def too_many(failed: Mapping[str, str], n_known: int, n_tasks: int) -> str:
    """Return lines on the failed tasks (name -> why) among the `n_known` first of a run; "" = no more than may fail."""
    first = min(FIRST, n_tasks)
    if n_known > first or len(failed) <= MOST_FAILED * first:
        return ""
    lines = [f"task {name}: {why}" for name, why in sorted(failed.items())]
    return "\n".join([*lines[:SHOWN], *([f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])])


def unfit(group: TrajectoryGroup) -> str:
    """Return why no trial of the group could ask the policy; "" = one could, or something else was at fault."""
    return "" if group.trajectories_G else next((t.detail for t in group.lost if t.detail.startswith(UNFIT)), "")


DEFAULT = OutcomePolicy(TREATMENTS, {})  # an evaluation always has it


def outcome_policy(changes: Mapping[str, object]) -> OutcomePolicy:
    """`changes`: outcome name -> train, mask, replace, or a reward; checked by `outcome_problems`."""
    rewards = {Outcome(name): number for name, value in changes.items() if (number := _number(value)) is not None}
    words = {Outcome(name): Treatment(str(value)) for name, value in changes.items() if _number(value) is None}
    return OutcomePolicy(TREATMENTS | words | dict.fromkeys(rewards, Treatment.TRAIN), rewards)


def outcome_problems(changes: Mapping[str, object]) -> list[str]:
    """Return a line for each invalid change."""
    return [line for name, value in changes.items() if (line := _problem(name, value))]


def _problem(name: str, value: object) -> str | None:
    field = f"outcome_policy.{name}={value}"
    if name not in _GRADED:
        if name in FAULTS:
            return f"{field}: a trial without a grade has no reward to train on; it is replaced, twice at most"
        return f"{field}: no such outcome; one of {', '.join(_GRADED)}"
    number = _number(value)
    allowed = (Treatment.TRAIN, Treatment.MASK, Treatment.REPLACE)
    if str(value) in allowed or (number is not None and math.isfinite(number)):
        return None
    return f"{field}: give {', '.join(allowed)}, or a reward"


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(str(value))
    except ValueError:
        return None
