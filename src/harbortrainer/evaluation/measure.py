"""`tasks measure`: an evaluation whose trials say how hard each task is, for `train difficulty=FILE`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harbortrainer.commands import PLAN_FILE
from harbortrainer.durable.files import read_json, write_json
from harbortrainer.evaluation.arguments import ENDING, EvalArgs
from harbortrainer.evaluation.session import KIND, RESULT, evaluated
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.trajectories import read_batch
from harbortrainer.stats import estimate_mean
from harbortrainer.training.outside import Outside


async def measure(args: EvalArgs, outside: Outside | None = None) -> int:
    """Evaluate, then write the file. Exit status of the evaluation. Raises UserError."""
    status, folder = await evaluated(args, outside)
    file = folder.with_name(folder.name + ENDING)
    write_json(file, _measured(RunDirectory(folder), args.pass_reward))
    print(f"{file}: train on its tasks with difficulty={file}@0.1,0.9")
    return status


def _measured(run: RunDirectory, pass_reward: float) -> dict[str, Any]:
    """Of each task its rewards, and means over its graded trials; the interval is of the share of passed trials."""
    value = read_json(run.path / RESULT)
    digests = {task["name"]: task["digest"] for task in read_json(run.path / PLAN_FILE)["tasks"]}
    trials: dict[str, list[Trajectory]] = {name: [] for name in digests}
    for trial in read_batch(run.trajectories(KIND, 0)).values():
        if trial.reward is not None:
            trials[trial.task_name].append(trial)
    (policy,) = value["policies"]
    about = {name: value[name] for name in ("model_name", "temperature", "trials", "pass_reward")}
    found = {one["name"]: _task(one, trials[one["name"]], pass_reward) for one in policy["per_task"]}
    tasks = {name: {"digest": digests[name]} | one for name, one in found.items()}
    return {"policy": policy["name"], **about, "tasks": tasks}


def _task(result: Mapping[str, Any], trials: Sequence[Trajectory], pass_reward: float) -> dict[str, Any]:
    """`seconds`: of the whole trial; `tokens`: of its conversation, each counted once."""
    passed = estimate_mean([float(reward >= pass_reward) for reward in result["rewards"]])
    means = {
        "turns": [len(trial.turns) for trial in trials],
        "tokens": [trial.n_unique_tokens for trial in trials],
        "sampled_tokens": [trial.n_sampled_tokens for trial in trials],
        "seconds": [trial.times.get("total", 0.0) for trial in trials],
    }
    interval = {"pass_rate": passed.mean, "low": passed.low, "high": passed.high}
    return {
        "rewards": result["rewards"],
        "ungraded": result["ungraded"],
        "reward": result["mean"],
        **{name: None if np.isnan(number) else round(float(number), 4) for name, number in interval.items()},
        **{name: round(float(np.mean(values)), 3) if values else None for name, values in means.items()},
    }
