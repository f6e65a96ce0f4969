"""Graded groups -> a training batch: group-relative advantages, and which trials are trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harbortrainer.config import Config
from harbortrainer.learning.brought import advantages_of, function
from harbortrainer.learning.datums import TrainingSequence, sequence_metrics, training_sequences
from harbortrainer.learning.observations import only_observing
from harbortrainer.learning.trajectory import JUDGE, REWARD, TAXONOMY, Trajectory, TrajectoryGroup, is_constant
from harbortrainer.learning.treatment import outcome_policy
from harbortrainer.model_file import model_of
from harbortrainer.stats import known, mean


def group_advantages(rewards_G: Sequence[float], *, baseline: str = "mean", by_std: bool = False) -> list[float]:
    """Return advantage of each member of one group; zeros for a constant group, a group of one and the baseline none.

    mean:           A_i = r_i - mean(r)              (Dr. GRPO, arXiv 2503.20783)
    leave_one_out:  A_i = r_i - mean(r without r_i)  (RLOO, arXiv 2402.14740)
    by_std:         A_i / std(r), population standard deviation  (GRPO, arXiv 2402.03300)
    """
    rewards = np.asarray(rewards_G, np.float64)
    n = len(rewards)
    if baseline == "none" or is_constant(rewards_G):
        return [0.0] * n
    advantages = rewards - rewards.mean()
    if baseline == "leave_one_out":
        advantages *= n / (n - 1)
    return (advantages / rewards.std() if by_std else advantages).tolist()


def has_signal(group: TrajectoryGroup, config: Config) -> bool:
    """Return whether the rewards of the trials that are trained on differ, with what a judge adds to them."""
    treated = _shaped(outcome_policy(config.outcome_policy).treat(group), config)
    if len(treated.trajectories_G) < 2 or not config.own_advantage:
        return len(treated.trajectories_G) > 1 and not treated.constant
    return any(array.any() for array in _advantages(treated, config))


TOO_SMALL, CONSTANT, NO_SIGNAL = "group too small", "constant group removed", "no advantage in the batch"


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A batch. `advantages` and `rewards` (those of training): of every graded trial that is not masked, by trial
    name.
    """

    sequences_D: tuple[TrainingSequence, ...]  # empty when no group carries any signal
    advantages: dict[str, float]
    metrics: dict[str, float]
    rewards: dict[str, float] = field(default_factory=dict)
    masked: tuple[str, ...] = ()  # graded trials that `outcome_policy` keeps from training
    left_out: dict[str, str] = field(default_factory=dict)  # other graded trials without an advantage, and why

    @property
    def observing(self) -> list[str]:
        """Trials of which only the observations teach."""
        return list(dict.fromkeys(sequence.trial_name for sequence in self.sequences_D if not sequence.acts))


def assemble(groups_P: Sequence[TrajectoryGroup], config: Config) -> TrainingBatch:
    """Return advantages of every group, and sequences of those that are trained on.

    Of turns with advantages of their own, `advantages` has the mean.

    `outcome_policy` treats each trial; a judge's shaping is added to the reward of those that are left.

    Left out, and counted: groups with fewer than two graded trials, constant groups under
    `remove_constant_reward_groups` or `oversample_max`, and the whole batch when every advantage is zero and there is
    no KL penalty. With `observation_loss_coef` their observations teach, and those of masked trials.
    """
    policy = outcome_policy(config.outcome_policy)
    treated_P = [_shaped(policy.treat(group), config) for group in groups_P]
    advantages: dict[str, float] = {}
    left_out: dict[str, str] = {}
    sequences: list[TrainingSequence] = []
    has_any = False
    for group in treated_P:
        advantages_G = _advantages(group, config)
        names = [t.trial_name for t in group.trajectories_G]
        advantages |= zip(names, (float(array.mean()) for array in advantages_G), strict=True)
        has_any |= any(array.any() for array in advantages_G)
        if reason := _reason(group, config):
            left_out |= dict.fromkeys(names, reason)
            continue
        for trajectory, advantage in zip(group.trajectories_G, advantages_G, strict=True):
            sequences += training_sequences(trajectory, advantage, observed=config.observation_loss_coef > 0)
    if not has_any and not config.kl_penalty_coef:
        left_out = dict.fromkeys(advantages, NO_SIGNAL) | left_out
        sequences = []
    if config.observation_loss_coef:
        sequences += only_observing(groups_P, {sequence.trial_name for sequence in sequences})
    metrics = _metrics(groups_P, treated_P, sequences, config)
    rewards = {t.trial_name: t.reward for g in treated_P for t in g.trajectories_G if t.reward is not None}
    masked = tuple(t.trial_name for g in groups_P for t in g.trajectories_G if t.trial_name not in rewards)
    return TrainingBatch(tuple(sequences), advantages, metrics, rewards, masked, left_out)


def _advantages(group: TrajectoryGroup, config: Config) -> list[np.ndarray]:
    """For each trajectory an array of one number, or of one a turn."""
    if config.own_advantage:
        return advantages_of(function("advantage", config.advantage), group)
    baseline, by_std = config.advantage, config.normalize_advantages_by_std
    return [np.array([one]) for one in group_advantages(group.rewards_G, baseline=baseline, by_std=by_std)]


def _shaped(group: TrajectoryGroup, config: Config) -> TrajectoryGroup:
    """The group with the judge's weight x score + weights of categories + `reward`'s number added to its rewards.

    Only where all its members have them: otherwise the missing one would be punished. Equal additions change no
    advantage and are left out, so that not a bit differs.
    """
    added_G = [_added(trajectory, config) for trajectory in group.trajectories_G]
    if None in added_G or len(set(added_G)) < 2:
        return group
    members_G = zip(group.trajectories_G, group.rewards_G, added_G, strict=True)
    return replace(
        group, trajectories_G=tuple(replace(t, reward=reward + (more or 0.0)) for t, reward, more in members_G)
    )


def _added(trajectory: Trajectory, config: Config) -> float | None:
    """What shaping adds to the reward; None = the trial was not judged, or `reward` not asked."""
    shaping = trajectory.shaping
    if not shaping or (config.judge and JUDGE not in shaping) or (config.reward and REWARD not in shaping):
        return None
    own = shaping.get(REWARD, 0.0) + sum(weight for name, weight in shaping.items() if name.startswith(TAXONOMY))
    judge = model_of("judge", config.judge)
    return (judge.weight if judge is not None else 0.0) * shaping.get(JUDGE, 0.0) + own


def _shaping_metrics(treated_P: Sequence[TrajectoryGroup], config: Config) -> dict[str, float]:
    """What the judge found in the trials that are trained on, before groups with a missing judgement are left alone."""
    if config.judge is None:
        return {}
    trials = [t for group in treated_P for t in group.trajectories_G]
    judged = [t.shaping for t in trials if JUDGE in t.shaping]
    names = sorted({name for shaping in judged for name in shaping if name.startswith(TAXONOMY)})
    added = [more for t in trials if (more := _added(t, config)) is not None]
    return {
        **known({"shaping/mean": mean(added)}),
        "shaping/failed": float(len(trials) - len(judged)),
        **{f"shaping/{name}": float(np.mean([bool(shaping.get(name)) for shaping in judged])) for name in names},
    }


def _reason(group: TrajectoryGroup, config: Config) -> str:
    """Why a group is not trained on, else "". Without rewards every token has a signal of its own."""
    if not config.by_rewards:
        return ""
    if len(group.trajectories_G) < 2:
        return TOO_SMALL
    removed = config.remove_constant_reward_groups or config.oversample_max
    return CONSTANT if group.constant and removed else ""


def _metrics(
    graded_P: Sequence[TrajectoryGroup],
    treated_P: Sequence[TrajectoryGroup],
    sequences_D: Sequence[TrainingSequence],
    config: Config,
) -> dict[str, float]:
    reasons = [_reason(group, config) for group in treated_P]
    trained = {sequence.trial_name for sequence in sequences_D}
    unique = sum(
        t.n_unique_tokens - t.n_side_tokens
        for g in graded_P
        for t in (*g.trajectories_G, *g.lost)
        if t.trial_name in trained
    )
    masked = sum(len(g.trajectories_G) - len(t.trajectories_G) for g, t in zip(graded_P, treated_P, strict=True))
    return {
        "group/too_small": float(reasons.count(TOO_SMALL)),
        "group/removed_constant": float(reasons.count(CONSTANT)),
        "group/trials_masked": float(masked),
        **_shaping_metrics(treated_P, config),
        **sequence_metrics(sequences_D, unique),
    }
