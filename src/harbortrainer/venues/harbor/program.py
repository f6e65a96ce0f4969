"""The agents that act in containers through the run's own model API: what each is called and needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.agents import by_agent
from harbortrainer.plugins import Brought, known, plugin

TERMINUS = "terminus-2"  # acts from this process
MOUNT = "/opt/agents"  # where containers see agents_dir; scripts/agents/pack writes it into the programs
PYTHONS = (f"{MOUNT}/python/bin/python", "python3")  # one of them carries requests where no socket can be opened
PORT = 18399  # of the model API, at 127.0.0.1 in each container; below the ports that clients get
URL = f"http://127.0.0.1:{PORT}"
OPENAI = (("OPENAI_API_KEY", "{key}"), ("OPENAI_BASE_URL", f"{URL}/v1"))
ANTHROPIC = (("ANTHROPIC_API_KEY", "{key}"), ("ANTHROPIC_BASE_URL", URL))
MEMORY_MB = 1024  # of a program of which nothing is known


@dataclass(frozen=True, slots=True)
class Program:
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

    @property
    def import_path(self) -> str:
        return f"harbortrainer.venues.harbor.installed:{self.name.replace('-', '_')}"

    def environment(self, key: str) -> dict[str, str]:
        """Return variables of its process: the API's address, and the key."""
        return {name: value.replace("{key}", key) for name, value in self.env}


PROGRAMS: dict[str, Program] = {}  # by name, once a setting has named them


def program_of(config: Config) -> Program | None:
    """Return the agent in containers that `config` names, one; None: Terminus-2, in this process. Raises UserError."""
    return None if config.agent == TERMINUS else named("agent", config.agent)


def named(field: str, agent: str) -> Program:
    """Return the agent in containers that a setting names. Raises UserError."""
    brought = plugin("agents", field, agent)
    made = brought.value if isinstance(brought.value, Program) else _of_class(brought)
    if (first := PROGRAMS.setdefault(made.name, made)) != made:
        raise UserError(f"{brought.given}: its name {made.name} is that of {first.harbors}; give it another")
    return made


def _of_class(brought: Brought) -> Program:
    """The program of a class of Harbor's that is given by itself: its command has its name. Raises UserError."""
    from harbor.agents.installed.base import BaseInstalledAgent

    kind = brought.value
    if not (isinstance(kind, type) and issubclass(kind, BaseInstalledAgent)):
        raise UserError(
            f"{brought.given}: no agent for containers; give a subclass of harbor.agents.installed.base."
            "BaseInstalledAgent, or a harbortrainer.Program"
        )
    return Program(kind.name(), f"{kind.__module__}:{kind.__qualname__}", kind.name())


def agent_memory(config: Config) -> int:
    """Get most MB that an agent of the run takes in the container, beside the task's; 0: it acts from this process."""
    return max(program.memory_mb if (program := program_of(one)) else 0 for one in by_agent(config))


def mounts(config: Config) -> list[dict[str, Any]]:
    """Return the mounts of the programs, the same for every trial; read-only: the policy cannot rewrite its agent."""
    if config.agents_dir is None:
        return []
    source = str(Path(config.agents_dir).resolve())
    return [{"type": "bind", "source": source, "target": MOUNT, "read_only": True}]


def check_agent(config: Config) -> None:
    """Raises UserError for settings of agents that cannot run, or not together."""
    configs = by_agent(config)
    if len(configs) > 1 and config.agent_kwargs:
        raise UserError(
            f"agent_kwargs={config.agent_kwargs}: options of one agent, and agent={config.agent} names several; leave "
            "agent_kwargs out, or name one agent"
        )
    if not any(map(program_of, configs)):
        for name, value in (("agent_kwargs", config.agent_kwargs), ("agents_dir", config.agents_dir)):
            if value:
                raise UserError(f"{name}={value}: agent={TERMINUS} has none; choose another agent, or leave it out")
    for one in configs:
        if (program := program_of(one)) is not None:
            _check_program(program, config)


def _check_program(program: Program, config: Config) -> None:
    if config.environment_type != "docker":
        raise UserError(
            f"agent={program.name}: environment_type={config.environment_type} cannot reach this process's model API; "
            f"use environment_type=docker or agent={TERMINUS}"
        )
    if config.agents_dir is not None and not (Path(config.agents_dir) / "bin" / program.program).is_file():
        pack = f"run scripts/agents/pack {config.agents_dir} {program.name}"
        fix = pack if program.name in known("agents") else "put the program there"
        raise UserError(f"agents_dir={config.agents_dir}: it has no bin/{program.program}; {fix}")
