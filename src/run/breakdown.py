"""Numbers of a batch by the domain and by the source of its tasks: `reward/mean/domain/NAME`. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from src.learning.trajectory import TrajectoryGroup
from src.rollout.task import Task
from src.stats.interval import estimate_reward

MOST = 20  # names of a kind that have columns of their own: those with most tasks
OTHER = "other"


class Breakdown:
    """For the tasks of one run, so that names stay the same from step to step. A single name has no columns."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        source, domain = ({task.name: getattr(task, kind) for task in tasks} for kind in ("source", "domain"))
        kinds = {"domain": domain, "source": source}
        if domain == source:  # tasks without a category have their source's name
            del kinds["domain"]
        self._label = {kind: _labels(names) for kind, names in kinds.items() if len(set(names.values())) > 1}

    def batch(self, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Of a training batch; a name without a graded trial has no mean."""
        metrics: dict[str, float] = {}
        for part, groups in self._parts(groups_P):
            rewards = [reward for group in groups for reward in group.rewards_G]
            if rewards:
                metrics[f"reward/mean/{part}"] = float(np.mean(rewards))
            metrics[f"group/count/{part}"] = float(len(groups))
            metrics[f"group/constant_fraction/{part}"] = float(np.mean([group.constant for group in groups]))
        return metrics

    def evaluation(self, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Of an evaluation, as `eval_metrics`; an interval where at least two tasks were graded."""
        metrics: dict[str, float] = {}
        for part, groups in self._parts(groups_P):
            reward = estimate_reward([group.rewards_G for group in groups])
            metrics[f"eval/tasks/{part}"] = float(reward.n_tasks)
            if reward.n_tasks:
                metrics[f"eval/reward_mean/{part}"] = reward.mean
            if reward.n_tasks > 1:
                metrics |= {f"eval/reward_low/{part}": reward.low, f"eval/reward_high/{part}": reward.high}
        return metrics

    def _parts(self, groups_P: Sequence[TrajectoryGroup]) -> list[tuple[str, list[TrajectoryGroup]]]:
        """("domain/NAME", its groups), by name."""
        parts: dict[str, list[TrajectoryGroup]] = defaultdict(list)
        for kind, label in self._label.items():
            for group in groups_P:
                parts[f"{kind}/{label[group.task_name]}"].append(group)
        return sorted(parts.items())


def _labels(names: Mapping[str, str]) -> dict[str, str]:
    """By task: its name's column. Those beyond MOST share one."""
    plain = {task: re.sub(r"[^A-Za-z0-9._-]+", "_", name) or "none" for task, name in names.items()}
    counts = Counter(plain.values())
    kept = sorted(counts, key=lambda name: (-counts[name], name))[:MOST]
    return {task: name if name in kept else OTHER for task, name in plain.items()}
