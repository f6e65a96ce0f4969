"""What a task's solution changes and leaves: it runs once a task, in a container of its own."""

import asyncio
import tempfile
from pathlib import Path

from harbor.agents.oracle import OracleAgent
from harbor.models.agent.context import AgentContext
from harbor.models.task.task import Task
from harbor.models.trial.paths import EnvironmentPaths

from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.integrity.asked import Footprint
from harbortrainer.docker.integrity.footprint import learned

SOLUTION_SEC = 600.0  # for the solution of a task without a time limit for its agent
_LOGS = EnvironmentPaths.agent_dir  # the oracle writes its log there


async def footprint_of(environment: DockerEngineEnvironment) -> Footprint | None:
    """Return the footprint of the task's solution, which runs for it once a task;

    None without one, or when it cannot run.
    """
    key = await environment.footprint_key()
    return None if key is None else await learned(key, environment.environment_name, lambda: _run(environment))


async def _run(environment: DockerEngineEnvironment) -> Footprint:
    """What the solution changes in a fresh container, run as Harbor's oracle would in the agent's network.

    One that fails at its end is taken as it is. Raises TimeoutError after the task's limit for agents; RuntimeError,
    OSError, docker.errors.APIError when it cannot run.
    """
    assert environment.task is not None
    policy = environment.first_network_policy
    task = Task(environment.task, disable_verification=True)
    with tempfile.TemporaryDirectory(prefix="harbortrainer-solution-") as folder:
        twin = environment.twin(f"{environment.task.name}__solution", Path(folder))
        try:
            await twin.start(force_build=False)
            if policy != twin.network_policy:
                await twin.set_network_policy(policy)
            await twin.exec(f"mkdir -p {_LOGS} && chmod 777 {_LOGS}", user="root")
            await twin.open_agent_phase()
            agent = OracleAgent(twin.trial_paths.agent_dir, environment.task, twin.trial_paths)
            async with asyncio.timeout(task.config.agent.timeout_sec or SOLUTION_SEC):
                for step in task.config.steps or [None]:
                    own = step.agent.user if step else None
                    with twin.with_default_user(task.config.agent.user if own is None else own):
                        if step:
                            await _set_up(twin, task, step.name)
                        await agent.run("", twin, AgentContext())
            return await twin.phases.observe()
        finally:
            await twin.stop(delete=True)


async def _set_up(twin: DockerEngineEnvironment, task: Task, step: str) -> None:
    """Bring a step's files and run its script, as Harbor does before the step's agent."""
    if (files := task.paths.step_workdir_dir(step)).is_dir():
        await twin.upload_dir(files, twin.workdir)
    if task.paths.step_setup_path(step).is_file():
        await twin.exec("bash ./setup.sh")
