"""Agents of a qualification: the oracle, without a network if asked for, and one that runs a script."""

from pathlib import Path
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.agents.oracle import OracleAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from src.rollout.harbor import boundary

SAID = "said"  # in the context's metadata: what a script printed
_MOST_SAID = 20_000  # characters


async def cut_network(environment: BaseEnvironment) -> None:
    """No network for the rest of this phase, where the environment can do that."""
    if environment.capabilities.dynamic_network_policy:
        await environment.set_network_policy(NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))


class OfflineOracle(OracleAgent):
    """Harbor's oracle in an environment whose network is cut."""

    def __init__(self, logs_dir: Path, task_dir: str, **kwargs: Any) -> None:
        super().__init__(logs_dir, Path(task_dir), TrialPaths(Path(logs_dir).parent), **kwargs)

    @override
    @boundary
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await cut_network(environment)
        await super().run(instruction, environment, context)


class ScriptAgent(BaseAgent):
    """Runs a shell script as the agent's user, within `seconds`; its output goes to the context's metadata."""

    def __init__(self, *args: Any, script: str = "true", seconds: int = 60, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._script = script
        self._seconds = seconds

    @staticmethod
    @override
    def name() -> str:
        return "harbortrainer-script"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing is installed."""

    @override
    @boundary
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        try:
            result = await environment.exec(self._script, timeout_sec=self._seconds)
        except RuntimeError:  # it took too long: what it did until then is graded
            return
        context.metadata = {SAID: (result.stdout or "")[-_MOST_SAID:]}
