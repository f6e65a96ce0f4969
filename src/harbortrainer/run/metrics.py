"""Metrics of a run, named `group/name`: of a batch, by domain and source, of a step's resources; and metrics.jsonl."""

import contextlib
import re
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from harbortrainer.durable.jsonl import append_line, cut_torn_line, read_lines
from harbortrainer.learning.agents import drawn
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup
from harbortrainer.model_api.gate import judge
from harbortrainer.policy.sampler import BUSY, COUNTERS, IN_FLIGHT, PolicySampler
from harbortrainer.run.directory import RunDirectory
from harbortrainer.stats import estimate_reward, known, mean, ratio
from harbortrainer.tasks.task import Task


def batch_metrics(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return rewards, groups, outcomes, turns and times of a training batch.

    A mean over nothing is left out: it is no 0.
    """
    kept = [t for group in groups_P for t in group.trajectories_G]
    lost = [t for group in groups_P for t in group.lost]
    rewards = [t.reward for t in kept if t.reward is not None]
    return known(
        {
            "reward/mean": mean(rewards),
            "reward/std": float(np.std(rewards)) if rewards else None,
            "reward/best_of_group": mean([max(g.rewards_G) for g in groups_P if g.rewards_G]),
            "group/constant_fraction": mean([float(g.constant) for g in groups_P]),
        }
    ) | {
        "group/count": float(len(groups_P)),
        "group/trials_lost": float(len(lost)),
        **outcome_metrics([*kept, *lost]),
        **agent_metrics([*kept, *lost]),
        **turn_metrics(kept),
        **_time_metrics(kept),
    }


def outcome_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`outcome/NAME`: trials that ended so, every outcome listed; `rollout/*`: faults."""
    counts = Counter(t.outcome for t in trajectories)
    faults = counts[Outcome.INFRASTRUCTURE_ERROR] + counts[Outcome.VERIFIER_ERROR]
    return {f"outcome/{outcome.value}": float(counts[outcome]) for outcome in Outcome} | {
        "rollout/trials": float(len(trajectories)),
        "rollout/retried": float(sum(t.attempt > 1 for t in trajectories)),
        **known({"rollout/infrastructure_failure_rate": ratio(faults, len(trajectories))}),
    }


def turn_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return turns, tokens, truncation, parse failures, special strings, tool calls.

    A turn that does not parse counts too.
    """
    turns = [turn for t in trajectories for turn in t.turns]
    sampled = [len(turn.completion_tokens_T) for turn in turns]
    failures = sum(t.stats.get("parse_failures", 0.0) for t in trajectories)
    return known(
        {
            "turn/per_trial": ratio(len(turns), len(trajectories)),
            "turn/sampled_tokens": mean(sampled),
            "turn/truncated_fraction": mean([float(turn.truncated) for turn in turns]),
            "turn/parse_failure_rate": ratio(failures, len(turns)),
        }
    ) | {
        "turn/special_strings": sum(t.stats.get("special_strings", 0.0) for t in trajectories),
        "tokens/sampled": float(sum(sampled)),
        "tokens/unique": float(sum(t.n_unique_tokens for t in trajectories)),
        **_tool_metrics(trajectories),
    }


def _tool_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Calls of trials with native tools, and the share of them that was not in the template's form."""
    counted = [t for t in trajectories if "tool_calls" in t.stats]
    if not counted:
        return {}
    turns = sum(len(t.turns) for t in counted)
    calls, fallbacks, bare = (sum(t.stats[f"tool_{name}"] for t in counted) for name in ("calls", "fallbacks", "bare"))
    return known(
        {
            "turn/tool_calls": ratio(calls, turns),
            "turn/tool_fallback_rate": ratio(fallbacks, calls),
            "turn/tool_bare_rate": ratio(bare, calls),
        }
    )


def agent_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return metrics of trials whose agent acts in its container; {} without one."""
    counted = [t for t in trajectories if "wire_turns" in t.stats]
    if not counted:
        return {}
    judged = judge([t.stats for t in counted], sum(t.n_sampled_tokens for t in counted))
    return {
        "agent/tokens_per_unique_token": judged.tokens_per_unique_token,
        "agent/foreign_rate": judged.foreign_rate,
        "agent/side_token_share": judged.side_token_share,
        "agent/never_asked": float(sum(not t.own_turns for t in counted)),
        "agent/failed": float(sum(t.outcome is Outcome.POLICY_ERROR for t in counted)),
    }


def eval_metrics(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return the held-out reward: mean over tasks of their means, standard error, 95% interval, ungraded trials.

    The interval covers every reward that the ungraded trials could have earned.
    Without a graded task there is neither: faults are no reward of 0.
    """
    kept = [t for group in groups_P for t in group.trajectories_G]
    ungraded_P = [len(g.lost) for g in groups_P]
    reward = estimate_reward([g.rewards_G for g in groups_P], ungraded_P)
    stderr = reward.stderr if reward.n_tasks > 1 else 0.0
    numbers = {"mean": reward.mean, "stderr": stderr, "low": reward.low, "high": reward.high}
    return {
        **({f"eval/reward_{name}": value for name, value in numbers.items()} if reward.n_tasks else {}),
        "eval/tasks": float(reward.n_tasks),
        "eval/trials": float(len(kept)),
        "eval/trials_ungraded": float(sum(ungraded_P)),
        **known({"eval/parse_failure_rate": turn_metrics(kept).get("turn/parse_failure_rate")}),
    }


def _time_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    stages = sorted({stage for t in trajectories for stage in t.times})
    metrics = {f"trial_time/{s}": fmean([t.times[s] for t in trajectories if s in t.times]) for s in stages}
    if walls := [t.times["total"] for t in trajectories if "total" in t.times]:
        metrics["rollout/tail_ratio"] = max(walls) / max(fmean(walls), 1e-9)
    return metrics


MOST = 20  # names of a kind that have their own columns: those with most tasks
OTHER = "other"  # the column that the rest shares


class Breakdown:
    """Metrics by domain, source, measured difficulty and agent, with the same columns at every step of a run.

    A single name has no columns.
    """

    def __init__(self, tasks: Sequence[Task], agents: str = "", seed: int = 0) -> None:
        """`agents`, `seed`: by which the agent of a trial is drawn."""
        self._agents, self._seed = agents, seed
        kinds = {
            kind: {task.name: getattr(task, kind) for task in tasks} for kind in ("domain", "source", "difficulty")
        }
        if kinds["domain"] == kinds["source"]:  # tasks without a category have their source's name
            del kinds["domain"]
        self._floor = {task.name: task.floor for task in tasks if task.floor is not None}
        self._clean = {task.name: task.clean for task in tasks if task.clean is not None}
        self._label = {kind: _labels(names) for kind, names in kinds.items() if len(set(names.values())) > 1}

    def batch(self, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Return metrics of a training batch; a name without a graded trial has no mean."""
        metrics = self._floors("reward/floor", groups_P)
        for part, groups in self._parts(groups_P):
            if rewards := [reward for group in groups for reward in group.rewards_G]:
                metrics[f"reward/mean/{part}"] = float(np.mean(rewards))
            metrics[f"group/count/{part}"] = float(len(groups))
            metrics[f"group/constant_fraction/{part}"] = float(np.mean([group.constant for group in groups]))
        return metrics

    def evaluation(self, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Return metrics of an evaluation; an interval where at least two tasks were graded."""
        metrics = self._floors("eval/reward_floor", groups_P) | self._clean_subset(groups_P)
        for part, groups in self._parts(groups_P):
            reward = estimate_reward([group.rewards_G for group in groups], [len(group.lost) for group in groups])
            metrics[f"eval/tasks/{part}"] = float(reward.n_tasks)
            if reward.n_tasks:
                metrics[f"eval/reward_mean/{part}"] = reward.mean
            if reward.n_tasks > 1:
                metrics |= {f"eval/reward_low/{part}": reward.low, f"eval/reward_high/{part}": reward.high}
        return metrics

    def _floors(self, name: str, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """The mean reward of doing nothing on tasks where it is known, in all and by part."""
        found: dict[str, float] = {}
        for part, groups in [("", list(groups_P)), *self._parts(groups_P)]:
            if floors := [self._floor[group.task_name] for group in groups if group.task_name in self._floor]:
                found[f"{name}/{part}" if part else name] = float(np.mean(floors))
        return found

    def _clean_subset(self, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """The mean over test tasks of a data set that none of its training tasks is related to."""
        if not any(group.task_name in self._clean for group in groups_P):
            return {}
        kept = [group for group in groups_P if self._clean.get(group.task_name)]
        reward = estimate_reward([group.rewards_G for group in kept], [len(group.lost) for group in kept])
        mean = {"eval/reward_mean_clean": reward.mean} if reward.n_tasks else {}
        return {"eval/tasks_clean": float(reward.n_tasks)} | mean

    def _parts(self, groups_P: Sequence[TrajectoryGroup]) -> list[tuple[str, list[TrajectoryGroup]]]:
        """("domain/NAME", its groups), by name."""
        parts: dict[str, list[TrajectoryGroup]] = defaultdict(list)
        for kind, label in self._label.items():
            for group in groups_P:
                parts[f"{kind}/{label[group.task_name]}"].append(group)
        for group in groups_P if "," in self._agents else ():
            trial = (*group.trajectories_G, *group.lost)[0].trial_name
            parts[f"agent/{_plain(drawn(self._agents, self._seed, trial))}"].append(group)
        return sorted(parts.items())


def _labels(names: Mapping[str, str]) -> dict[str, str]:
    """By task: its name's column. Those beyond MOST share one."""
    plain = {task: _plain(name) for task, name in names.items()}
    counts = Counter(plain.values())
    kept = sorted(counts, key=lambda name: (-counts[name], name))[:MOST]
    return {task: name if name in kept else OTHER for task, name in plain.items()}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name) or "none"


class StepUsage:
    """Time, CPU and sampler load since the start of a step; `metrics` holds what was measured so far."""

    def __init__(self, sampler: PolicySampler, load: Mapping[str, Any] = MappingProxyType({})) -> None:
        """`load`: what the server reports about its work so far."""
        self._load = load
        self.metrics: dict[str, float] = {}
        self._sampler = sampler
        self._wall = time.monotonic()
        self._own_cpu = time.process_time()
        self._children_cpu = _children_cpu()
        self._totals = sampler.totals

    def sampled(self, groups_P: Sequence[TrajectoryGroup], load: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Read the clocks at the end of the time in which trials run. `load`: what the server reports now."""
        wall = max(time.monotonic() - self._wall, 1e-9)
        trials = [trial for group in groups_P for trial in (*group.trajectories_G, *group.lost)]
        turns = max(sum(len(trial.turns) for trial in trials), 1)
        now = self._sampler.totals
        counted = {name: now[name] - self._totals[name] for name in (*COUNTERS, BUSY, IN_FLIGHT)}
        self.metrics |= {f"sampler/{name}": counted[name] for name in COUNTERS} | {
            "util/sampler_busy": counted[BUSY] / wall,
            "util/requests_in_flight": counted[IN_FLIGHT] / wall,
            "util/agents_at_work": sum(trial.times.get("agent", 0.0) for trial in trials) / wall,
            "orchestrator/cpu_ms_per_turn": 1000 * (time.process_time() - self._own_cpu) / turns,
            "orchestrator/children_cpu_ms_per_turn": 1000 * (_children_cpu() - self._children_cpu) / turns,
            "rollout/trials_per_second": len(trials) / wall,
            **load_metrics(self._load, load),
        }

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Measure the block as `time/PART`."""
        started = time.monotonic()
        yield
        self.metrics[f"time/{part}"] = time.monotonic() - started

    def ended(self, load: Mapping[str, Any] = MappingProxyType({})) -> dict[str, float]:
        """Return all metrics, with the whole step's time. `load`: what the server reports at the end of the step."""
        return self.metrics | compile_metrics(self._load, load) | {"time/step": time.monotonic() - self._wall}


def compile_metrics(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Get programs that the server compiled between two readings, and the seconds; without what it does not report."""
    names = [name for name in ("compiles", "compiles_cached", "compiles_ahead", "compile_seconds") if name in after]
    if not before or _restarted(before, after):
        return {}
    return {f"server/{name}": _growth(before, after, name) for name in names}


def load_metrics(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """`server/*` of waves and GPUs between two readings; without what the server does not report."""
    if not before or not after or _restarted(before, after):
        return {}
    more = partial(_growth, before, after)
    metrics: dict[str, float] = {}
    if after.get("seats"):
        metrics["server/seats"] = float(after["seats"])
    if more("waves"):
        metrics["server/requests_per_wave"] = more("wave_requests") / more("waves")
        metrics["server/wave_seconds"] = more("wave_seconds") / more("waves")
    if more("gpu_seconds"):
        metrics["server/gpu_busy"] = more("gpu_busy_seconds") / more("gpu_seconds")
    return metrics


def _growth(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float:
    return float(after.get(name, 0.0)) - float(before.get(name, 0.0))


def _restarted(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the counters began anew between the readings."""
    return _growth(before, after, "waves") < 0 or _growth(before, after, "compile_seconds") < 0


def _children_cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


class RowSink(Protocol):
    """Takes every row in order and skips the rows that it has."""

    def log(self, row: dict[str, Any]) -> None: ...
    def finish(self, exit_code: int | None = None) -> None: ...


class MetricsLog:
    """metrics.jsonl and wandb: one row for each `global_step`, which only grows. Only `close` ends the wandb run.

    A row stays when a run continues from an earlier state: the same trials repeat the same step. On resume, earlier
    rows are replayed to wandb, which skips the rows that it has.
    """

    def __init__(self, run: RunDirectory, wandb: RowSink | None = None) -> None:
        self._path = run.metrics
        self._wandb = wandb
        cut_torn_line(self._path)
        rows = read_lines(self._path)
        self.last_step = rows[-1]["global_step"] if rows else -1
        if wandb is not None:
            for row in rows:
                wandb.log(row)

    def log(self, global_step: int, metrics: dict[str, float]) -> None:
        if global_step <= self.last_step:
            raise ValueError(f"global_step {global_step} was logged already (last {self.last_step})")
        self.last_step = global_step
        row = {"global_step": global_step, **metrics}
        append_line(self._path, row)
        if self._wandb is not None:
            self._wandb.log(row)

    def close(self, exit_code: int = 0) -> None:
        if self._wandb is not None:
            self._wandb.finish(exit_code=exit_code)
