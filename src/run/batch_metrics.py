"""Numbers of one batch of groups, named `group/name`. Pure; every input may be empty."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from src.learning.trajectory import Outcome, Trajectory, TrajectoryGroup
from src.stats.interval import estimate_reward


def batch_metrics(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Rewards, groups, outcomes, turns and times of a training batch; an empty batch gives zeros, never an error."""
    kept = [t for group in groups_P for t in group.trajectories_G]
    lost = [t for group in groups_P for t in group.lost]
    rewards = [t.reward for t in kept if t.reward is not None]
    return {
        "reward/mean": _mean(rewards),
        "reward/std": float(np.std(rewards)) if rewards else 0.0,
        "reward/best_of_group": _mean([max(g.rewards_G) for g in groups_P if g.rewards_G]),
        "group/count": float(len(groups_P)),
        "group/constant_fraction": _mean([float(g.constant) for g in groups_P]),
        "group/trials_lost": float(len(lost)),
        **outcome_metrics([*kept, *lost]),
        **turn_metrics(kept),
        **_time_metrics(kept),
    }


def outcome_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`outcome/NAME`: trials that ended so, every outcome listed; `rollout/*`: the faults among them."""
    counts = Counter(t.outcome for t in trajectories)
    faults = counts[Outcome.INFRASTRUCTURE_ERROR] + counts[Outcome.VERIFIER_ERROR]
    return {f"outcome/{outcome.value}": float(counts[outcome]) for outcome in Outcome} | {
        "rollout/trials": float(len(trajectories)),
        "rollout/retried": float(sum(t.attempt > 1 for t in trajectories)),
        "rollout/infrastructure_failure_rate": faults / len(trajectories) if trajectories else 0.0,
    }


def turn_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Turns, tokens, truncation, parse failures. A turn that does not parse is counted, not dropped."""
    turns = [turn for t in trajectories for turn in t.turns]
    sampled = [len(turn.completion_tokens_T) for turn in turns]
    failures = sum(t.stats.get("parse_failures", 0.0) for t in trajectories)
    return {
        "turn/per_trial": len(turns) / len(trajectories) if trajectories else 0.0,
        "turn/sampled_tokens": _mean(sampled),
        "turn/truncated_fraction": _mean([float(turn.truncated) for turn in turns]),
        "turn/parse_failure_rate": failures / len(turns) if turns else 0.0,
        "tokens/sampled": float(sum(sampled)),
        "tokens/unique": float(sum(t.n_unique_tokens for t in trajectories)),
    }


def eval_metrics(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Held-out reward: mean over tasks of the task's mean, standard error and 95% interval over tasks, ungraded trials.

    Without a graded task the mean is 0 and there is no interval.
    """
    kept = [t for group in groups_P for t in group.trajectories_G]
    reward = estimate_reward([g.rewards_G for g in groups_P])
    interval = {"eval/reward_low": reward.low, "eval/reward_high": reward.high} if reward.n_tasks else {}
    return {
        "eval/reward_mean": reward.mean if reward.n_tasks else 0.0,
        "eval/reward_stderr": reward.stderr if reward.n_tasks > 1 else 0.0,
        **interval,
        "eval/tasks": float(reward.n_tasks),
        "eval/trials": float(len(kept)),
        "eval/trials_ungraded": float(sum(len(g.lost) for g in groups_P)),
        "eval/parse_failure_rate": turn_metrics(kept)["turn/parse_failure_rate"],
    }


def _time_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    stages = sorted({stage for t in trajectories for stage in t.times})
    metrics = {f"trial_time/{s}": _mean([t.times[s] for t in trajectories if s in t.times]) for s in stages}
    walls = [t.times["total"] for t in trajectories if "total" in t.times]
    if walls:
        metrics["rollout/tail_ratio"] = max(walls) / max(_mean(walls), 1e-9)
    return metrics


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return float(np.mean(values)) if values else 0.0
