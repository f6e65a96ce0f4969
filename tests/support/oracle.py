"""One trial with Harbor's oracle agent."""

import uuid
from pathlib import Path

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

Rewards = dict[str, float]


async def run_oracle(task: Path, environment: EnvironmentConfig) -> TrialResult:
    """One trial of `task` with Harbor's oracle agent; its files go to `trials` beside the task."""
    config = TrialConfig(
        task=TaskConfig(path=task),
        trial_name=f"{task.name}-{uuid.uuid4().hex[:6]}",
        trials_dir=task.parent / "trials",
        agent=AgentConfig(name="oracle"),
        environment=environment,
    )
    return await (await Trial.create(config)).run()


def rewards_of(result: TrialResult) -> Rewards | str:
    """The rewards, or why there are none."""
    faults = [result.exception_info, *(step.exception_info for step in result.step_results or [])]
    if fault := next(filter(None, faults), None):
        return f"{fault.exception_type}: {fault.exception_message}"
    return dict(result.verifier_result.rewards or {}) if result.verifier_result else "no reward"
