"""Functions as a user brings them, by file."""

from collections.abc import Sequence

from harbortrainer.learning.trajectory import Trajectory, TrialName


def squared(rewards: Sequence[float], trajectories: Sequence[Trajectory]) -> list[float]:
    """Each trajectory against the best of its group."""
    return [reward**2 - max(rewards) ** 2 - 1 for reward in rewards]


def later(rewards: Sequence[float], trajectories: Sequence[Trajectory]) -> list[list[float]]:
    """The later a turn, the more it counts."""
    mean = sum(rewards) / len(rewards)
    return [
        [(reward - mean) * (index + 1) / len(one.turns) for index in range(len(one.turns))]
        for reward, one in zip(rewards, trajectories, strict=True)
    ]


def by_member(trajectory: Trajectory) -> float:
    return 0.5 * TrialName.parse(trajectory.trial_name).member
