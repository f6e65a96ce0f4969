"""What mini-swe-agent asks the policy: its own templates, read from the packed program, and the tool it declares."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined

PACK = Path(".state/agents")  # of scripts/setup.sh --agents
CONFIG = Path("mini-swe-agent/minisweagent/config/mini.yaml")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Execute a bash command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
            "required": ["command"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class System:
    """The machine, as the first prompt shows it."""

    release: str
    version: str
    system: str = "Linux"
    machine: str = "x86_64"


class Agent:
    """Its texts. `pack`: a folder of scripts/agents/pack. Raises FileNotFoundError when the agent is not in it."""

    def __init__(self, pack: Path = PACK) -> None:
        settings = yaml.safe_load((pack / CONFIG).read_text())
        templates = Environment(undefined=StrictUndefined)
        self.system_prompt = settings["agent"]["system_template"].strip()
        self._first = templates.from_string(settings["agent"]["instance_template"])
        self._result = templates.from_string(settings["model"]["observation_template"])

    def opening(self, instruction: str, system: System) -> list[dict[str, Any]]:
        """The messages before the first answer; `instruction` as in instruction.md, with its newline."""
        fields = {"system": system.system, "machine": system.machine}
        first = self._first.render(task=instruction, release=system.release, version=system.version, **fields)
        return [{"role": "system", "content": self.system_prompt}, {"role": "user", "content": first}]

    def result(self, output: str, returncode: int | str) -> str:
        """A command's result, as a message of the tool."""
        return self._result.render(output={"output": output, "returncode": returncode, "exception_info": ""})
