"""The agents that act in containers through the run's own model API: what each is called and needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbortrainer.bundled.agents.address import MOUNT, URL
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.plugins import Brought, known
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.venues.harbor.container_agent import TERMINUS, ContainerAgent, ContainerService

OPENAI = (("OPENAI_API_KEY", "{key}"), ("OPENAI_BASE_URL", f"{URL}/v1"))
ANTHROPIC = (("ANTHROPIC_API_KEY", "{key}"), ("ANTHROPIC_BASE_URL", URL))
MEMORY_MB = 1024  # of a program of which nothing is known


@dataclass(frozen=True, slots=True)
class Program(ContainerAgent):
    """An agent that is a program in the container. `harbors`: MODULE:CLASS of Harbor's agent; `program`: its command.

    `memory_mb`: its memory beside the work, measured and rounded up. `env`: variables of its process; {key} is the
    trial's key, in a name that Harbor masks in its files. `model`: the model's name as the agent is given it.
    """

    name: str
    harbors: str
    program: str
    memory_mb: int = MEMORY_MB
    env: tuple[tuple[str, str], ...] = (*OPENAI, *ANTHROPIC)
    model: str = "openai/policy"

    def __str__(self) -> str:
        return self.harbors

    @property
    def import_path(self) -> str:
        return f"harbortrainer.bundled.agents.installed:{self.name.replace('-', '_')}"

    def environment(self, key: str) -> dict[str, str]:
        """Return variables of its process: the API's address, and the key."""
        return {name: value.replace("{key}", key) for name, value in self.env}

    def mounts(self, config: Config) -> list[dict[str, Any]]:
        """Return the mounts of the programs; read-only: the policy cannot rewrite its agent."""
        if config.agents_dir is None:
            return []
        source = str(Path(config.agents_dir).resolve())
        return [{"type": "bind", "source": source, "target": MOUNT, "read_only": True}]

    def check(self, config: Config) -> None:
        """Raises UserError for settings with which it cannot run."""
        if config.environment_type != "docker":
            raise UserError(
                f"agent={self.name}: environment_type={config.environment_type} cannot reach this process's model API; "
                f"use environment_type=docker or agent={TERMINUS}"
            )
        if config.agents_dir is not None and not (Path(config.agents_dir) / "bin" / self.program).is_file():
            pack = f"run scripts/agents/pack {config.agents_dir} {self.name}"
            fix = pack if self.name in known("agents") else "put the program there"
            raise UserError(f"agents_dir={config.agents_dir}: it has no bin/{self.program}; {fix}")

    def service(self, template: ChatTemplate) -> ContainerService:
        """Make what answers all agents of a run. Raises UserError when the template declares no tools."""
        from harbortrainer.bundled.agents.session import AgentService

        return AgentService.of(template)

    def like(self, brought: Brought) -> "Program":
        """Return the program of a class of Harbor's, whose command has its name. Raises UserError."""
        from harbor.agents.installed.base import BaseInstalledAgent

        kind = brought.value
        if not (isinstance(kind, type) and issubclass(kind, BaseInstalledAgent)):
            raise UserError(
                f"{brought.given}: no agent for containers; give a subclass of harbor.agents.installed.base."
                "BaseInstalledAgent, or a harbortrainer.Program"
            )
        if not (name := kind.name()):
            raise UserError(f"{brought.given}: its name() returns {name!r}; return the name of its program")
        return Program(name, f"{kind.__module__}:{kind.__qualname__}", name)
