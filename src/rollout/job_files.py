"""`config.json` and `result.json` beside a batch's trials: with them `harbor view` shows the batch as a job."""

import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from src.disk import telling

if TYPE_CHECKING:
    from harbor.models.trial.config import AgentConfig
    from harbor.models.trial.result import TrialResult


def write_job_files(trials_dir: Path, n_total_trials: int) -> None:
    """Summarise the trials that are on disk; `n_total_trials`: how many the batch asked for. Raises DiskFault.

    The reward of the list of jobs is the mean over graded trials: Harbor's own counts those without a grade as 0.
    """
    from harbor.models.job.config import JobConfig
    from harbor.models.job.result import JobResult, JobStats
    from harbor.models.trial.result import TrialResult
    from pydantic import ValidationError

    results = []
    for path in sorted(trials_dir.glob("*/result.json")):
        try:
            results.append(TrialResult.model_validate_json(path.read_bytes()))
        except ValidationError:  # cut off when an earlier process was killed; its trial runs again
            continue
    now = datetime.now(UTC)
    config = JobConfig(
        job_name=trials_dir.name,
        jobs_dir=trials_dir.parent,
        agents=[_agent(results[0])] if results else [],
        tasks=list({result.config.task.path: result.config.task for result in results}.values()),
    )
    result = JobResult(
        id=uuid.uuid5(uuid.NAMESPACE_URL, str(trials_dir.resolve())),
        started_at=min((r.started_at for r in results if r.started_at), default=now),
        updated_at=now,
        finished_at=now,
        n_total_trials=n_total_trials,
        stats=JobStats.from_trial_results(results, n_total_trials=n_total_trials),
    )
    for evaluated in result.stats.evals.values():
        rewards = [value for value, trials in evaluated.reward_stats.get("reward", {}).items() for _ in trials]
        evaluated.metrics = [{"mean": fmean(rewards)}] if rewards else []
    _write(trials_dir / "config.json", config.model_dump_json(indent=2, exclude_defaults=True))
    _write(trials_dir / "result.json", result.model_dump_json(indent=2, exclude={"trial_results"}))


def _agent(result: "TrialResult") -> "AgentConfig":
    """As the list of jobs names it."""
    return result.config.agent.model_copy(update={"kwargs": {}, "name": result.agent_info.name})


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with telling(path):
        temporary.write_text(text)
        os.replace(temporary, path)
