"""Trajectory groups -> one training batch: advantages, sequences, and what was left out and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from src.config import Config
from src.learning.advantages import group_advantages
from src.learning.datums import TrainingSequence, sequence_metrics, training_sequences
from src.learning.trajectory import TrajectoryGroup
from src.learning.treatment import outcome_policy


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    sequences_D: tuple[TrainingSequence, ...]  # empty when no group carries any signal
    advantages: dict[str, float]  # of every graded trial, by trial name
    metrics: dict[str, float]


def assemble(groups_P: Sequence[TrajectoryGroup], config: Config) -> TrainingBatch:
    """Advantages for every group, sequences for those that are trained on, each trial treated by `outcome_policy`.

    Left out, and counted: groups with fewer than two graded trials, constant groups when
    `remove_constant_reward_groups`, and the whole batch when every advantage is zero and no KL penalty is asked for.
    """
    advantages: dict[str, float] = {}
    sequences: list[TrainingSequence] = []
    unique_tokens = too_small = removed = masked = 0
    policy = outcome_policy(config.outcome_policy)
    for graded in groups_P:
        group = policy.treat(graded)
        masked += len(graded.trajectories_G) - len(group.trajectories_G)
        advantages_G = group_advantages(
            group.rewards_G, baseline=config.advantage_baseline, by_std=config.normalize_advantages_by_std
        )
        advantages |= {t.trial_name: a for t, a in zip(group.trajectories_G, advantages_G, strict=True)}
        if len(group.trajectories_G) < 2:
            too_small += 1
        elif group.constant and config.remove_constant_reward_groups:
            removed += 1
        else:
            for trajectory, advantage in zip(group.trajectories_G, advantages_G, strict=True):
                sequences += training_sequences(trajectory, advantage)
                unique_tokens += trajectory.n_unique_tokens
    if not any(advantages.values()) and not config.kl_penalty_coef:
        sequences = []
    metrics = {
        "group/too_small": float(too_small),
        "group/removed_constant": float(removed),
        "group/trials_masked": float(masked),
        **sequence_metrics(sequences, unique_tokens),
    }
    return TrainingBatch(tuple(sequences), advantages, metrics)
