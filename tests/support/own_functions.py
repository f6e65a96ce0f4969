"""Functions as a user brings them, by file."""

from collections.abc import Sequence
from typing import Any

from harbortrainer.backend.own_loss import LossSequence
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


def importance_sampling(sequences: Sequence[LossSequence]) -> tuple[Any, dict[str, float]]:
    """The server's loss importance_sampling with loss_norm=token_mean; torch's methods alone."""
    n = sum(int(one.action_T.sum()) for one in sequences)
    ratios = [((one.logprobs_T - one.sampled_logprobs_T).exp(), one) for one in sequences]
    loss = -sum((ratio * one.advantages_T * one.action_T).sum() for ratio, one in ratios) / n
    return loss, {"observed": float(sum(int(one.observation_T.sum()) for one in sequences))}
