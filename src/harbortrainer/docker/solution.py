"""Runs a task's own solution in a fresh container of its image, for the system paths that it changes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from harbor.agents.oracle import OracleAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.task.config import NetworkPolicy
from harbor.models.task.task import Task
from harbor.models.trial.paths import EnvironmentPaths, TrialPaths

from harbortrainer.docker.system import Footprint

_LOGS = str(EnvironmentPaths.agent_dir)  # the oracle writes its log there
DEFAULT_SEC = 600.0  # for a task without a time limit for its agent


async def footprint_of_solution(
    environment: BaseEnvironment,
    task_dir: Path,
    folder: Path,
    policy: NetworkPolicy,
    *,
    begin: Callable[[], Awaitable[None]],
    observe: Callable[[], Awaitable[Footprint]],
) -> Footprint:
    """Start `environment`, run the solution as Harbor's oracle would in the network of `policy`, and remove it.

    `begin` and `observe` belong to the environment: before the solution acts, and after. `folder` takes its log. Raises
    TimeoutError after the task's limit for agents; RuntimeError, OSError, docker.errors.APIError when the solution
    cannot run. A solution that fails at its end is taken as it is.
    """
    task = Task(task_dir, disable_verification=True)
    paths = TrialPaths(folder)
    paths.agent_dir.mkdir(parents=True, exist_ok=True)
    agent = OracleAgent(paths.agent_dir, task_dir, paths)
    try:
        await environment.start(force_build=False)
        if policy != environment.network_policy:
            await environment.set_network_policy(policy)
        await environment.exec(f"mkdir -p {_LOGS} && chmod 777 {_LOGS}", user="root")
        await begin()
        async with asyncio.timeout(task.config.agent.timeout_sec or DEFAULT_SEC):
            with environment.with_default_user(task.config.agent.user):
                for _ in task.config.steps or [None]:
                    await agent.run("", environment, AgentContext())
        return await observe()
    finally:
        await environment.stop(delete=True)
