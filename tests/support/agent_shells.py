"""What the agents that act in a container call a command, and turns of a policy that runs commands by them."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harbortrainer.bundled.agents.program import Program
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.venues.harbor.container_agent import check_agent, named
from tests.conftest import ROOT

PACK = Path(os.environ.get("AGENTS_DIR", ROOT / ".state" / "agents"))
HELLO = "echo Hello > hello.txt"
WORK = ["ls -la", "printf 'caf\u00e9 \\\"q\\\"\\n'; echo '<|im_end|>'", HELLO, "cat hello.txt"]


@dataclass(frozen=True, slots=True)
class Shell:
    """How an agent's policy runs a command and ends.

    `full`: a context_limit that its first prompt fills by a third, 0 = it does not end there, since it shortens its
    history (qwen-coder at some 92,000 tokens, opencode where it may): tests play only "ok"; `more`: what the tool
    demands beside the command; `last`: the command that ends the session, "" = an answer without a call does.
    """

    tool: str
    argument: str
    full: int
    last: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


AGENTS = {
    "mini-swe-agent": Shell("bash", "command", 16_000, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    "codex": Shell("exec_command", "cmd", 70_000),
    "opencode": Shell("bash", "command", 0, more={"description": "work"}),
    "qwen-coder": Shell("run_shell_command", "command", 0, more={"is_background": False}),
    "claude-code": Shell("Bash", "command", 188_000, more={"description": "work"}),
}
BESIDE = "I answer myself."  # to every request without tools: the policy's own, and titles


def demand_packed(agents: Iterable[str]) -> None:
    """End the program with a line that names the first of these agents that is not in PACK, and what packs it."""
    for agent in agents:
        if agent not in AGENTS:
            raise SystemExit(f"error: {agent!r} is no agent; one of {', '.join(AGENTS)}")
        try:
            given: dict[str, Any] = {"agent": agent, "agents_dir": str(PACK)}
            check_agent(Config(model_name="fake/policy", tasks_dir=".", **given))
        except UserError as error:
            raise SystemExit(f"error: {error}") from None


def call(agent: str, command: str, *, spaced: bool = False) -> str:
    """A turn in the template's form; `spaced`: in JSON that no serialiser writes."""
    shell = AGENTS[agent]
    arguments = json.dumps({shell.argument: command, **shell.more}, ensure_ascii=not spaced)
    if spaced:
        text = f'{{"name":  "{shell.tool}","arguments":   {arguments} }}'
    else:
        text = f'{{"name": "{shell.tool}", "arguments": {arguments}}}'
    return f"{'Look.  ' if spaced else ''}\n<tool_call>\n{text}\n</tool_call>"


def script(agent: str, commands: Sequence[str] = WORK) -> list[str]:
    """Turns that run these commands, and end the session."""
    last = AGENTS[agent].last
    said = [call(agent, command, spaced=bool(number % 2)) for number, command in enumerate(commands)]
    return [*said, call(agent, last) if last else "All done."]


def command(agent: str) -> str:
    program = named("agent", agent)
    assert isinstance(program, Program)
    return program.program
