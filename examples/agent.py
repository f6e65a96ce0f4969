"""An agent of one's own, whose program is examples/one-shot. harbortrainer train agent=examples/agent.py:OneShot ...

mkdir -p ~/agents; scripts/agents/pack ~/agents mini-swe-agent  # every pack has a Python
cp examples/one-shot ~/agents/bin/  # agents_dir=~/agents
"""

import shlex
from typing import Any

from harbor.agents.installed.base import BaseInstalledAgent


class OneShot(BaseInstalledAgent):
    """Runs its program once, as the task's user. Its name is the program's."""

    @staticmethod
    def name() -> str:
        return "one-shot"

    async def install(self, environment: Any) -> None:
        """Nothing: no trial installs a program."""

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        await self.exec_as_agent(environment, command=f"one-shot {shlex.quote(instruction)}")
