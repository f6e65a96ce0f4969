"""The agents that act in containers through the run's own model API: what each is called and needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harbortrainer.config import Config
from harbortrainer.errors import UserError

TERMINUS = "terminus-2"  # acts from this process
MOUNT = "/opt/agents"  # where containers see agents_dir; scripts/agents/pack writes it into the programs
PYTHONS = (f"{MOUNT}/python/bin/python", "python3")  # one of them carries requests where no socket can be opened
PORT = 18399  # of the model API, at 127.0.0.1 in each container; below the ports that clients get
URL = f"http://127.0.0.1:{PORT}"
Wire = Literal["openai", "anthropic"]


@dataclass(frozen=True, slots=True)
class Program:
    """One agent. `harbors`: module and class in harbor.agents.installed; `program`: its command; `memory_mb`: what it
    takes beside the work, measured and rounded up.
    """

    name: str
    harbors: tuple[str, str]
    program: str
    memory_mb: int
    wire: Wire = "openai"
    env: tuple[tuple[str, str], ...] = ()

    @property
    def import_path(self) -> str:
        return f"harbortrainer.rollout.installed:{self.name.replace('-', '_')}"

    @property
    def model(self) -> str:
        """The model's name as the agent is given it."""
        return "openai/policy" if self.wire == "openai" else "policy"

    def environment(self, key: str) -> dict[str, str]:
        """Variables of its process: the API's address, and the key, in a name that Harbor masks in its files."""
        if self.wire == "openai":
            return {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{URL}/v1", **dict(self.env)}
        return {"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": URL, **dict(self.env)}


_LITELLM = (("LITELLM_LOCAL_MODEL_COST_MAP", "True"),)
_OPENCODE = (("OPENCODE_DISABLE_MODELS_FETCH", "1"), ("OPENCODE_DISABLE_AUTOUPDATE", "1"))
PROGRAMS = {
    one.name: one
    for one in (
        Program("mini-swe-agent", ("mini_swe_agent", "MiniSweAgent"), "mini-swe-agent", 512, env=_LITELLM),
        Program("codex", ("codex", "Codex"), "codex", 512),
        Program("opencode", ("opencode", "OpenCode"), "opencode", 1024, env=_OPENCODE),
        Program("qwen-coder", ("qwen_code", "QwenCode"), "qwen", 1024),
        Program("claude-code", ("claude_code", "ClaudeCode"), "claude", 512, "anthropic"),
    )
}


def program_of(config: Config) -> Program | None:
    """None: Terminus-2, in this process."""
    return PROGRAMS.get(config.agent)


def agent_memory(config: Config) -> int:
    """MB that the run's agent takes in the container, beside the task's; 0: it acts from this process."""
    program = program_of(config)
    return program.memory_mb if program is not None else 0


def mounts(config: Config) -> list[dict[str, Any]]:
    """Of the programs, read-only: the same for every trial, and the policy cannot rewrite its agent."""
    if config.agents_dir is None:
        return []
    source = str(Path(config.agents_dir).resolve())
    return [{"type": "bind", "source": source, "target": MOUNT, "read_only": True}]


def check_agent(config: Config) -> None:
    """Raises UserError for settings of an agent that cannot run."""
    program = program_of(config)
    if program is None:
        for name, value in (("agent_kwargs", config.agent_kwargs), ("agents_dir", config.agents_dir)):
            if value:
                raise UserError(f"{name}={value}: agent={TERMINUS} has none; choose another agent, or leave it out")
        return
    if config.environment_type != "docker":
        raise UserError(
            f"agent={program.name}: environment_type={config.environment_type} cannot reach this process's model API; "
            f"use environment_type=docker or agent={TERMINUS}"
        )
    if config.agents_dir is not None and not (Path(config.agents_dir) / "bin" / program.program).is_file():
        raise UserError(
            f"agents_dir={config.agents_dir}: it has no bin/{program.program}; run "
            f"scripts/agents/pack {config.agents_dir} {program.name}"
        )
