"""Conversations of a careless author with mini-swe-agent about terminal-easy's kinds of task, to warm up a policy.

python -m scripts.shell.demonstrations FILE [COUNT=2560] [SEED=1] [SHARE=0.35]

A line of FILE is one conversation with the tool that it declares: {"messages": [...], "tools": [...]}. The prompts are
the agent's own, the words are in no task of terminal-easy. The author writes valid calls, in the form that
tool_format=hermes asks for, copies names without a mistake and submits after one command. He takes the right command in
SHARE of the conversations only: which command is right is left to the rewards.
"""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harbortrainer.policy.special_strings import CALL_TAGS
from scripts.easy.demonstrations import cases, from_command_line, write_records
from scripts.quickstart.cases import Case, Command
from scripts.shell.agent import SUBMIT, TOOL, Agent, System
from scripts.shell.transcripts import some_system

PLAN = (
    "One command should be enough for this.",
    "I will run one command that does what is asked.",
    "The task is clear, so I run the command for it.",
)
DONE = (
    "The command was executed, so I submit.",
    "The work is finished.",
    "Nothing is left to do.",
)


def answer(text: str, command: str) -> str:
    """What the policy is to sample: a sentence, and a call of the tool."""
    call = json.dumps({"name": TOOL["function"]["name"], "arguments": {"command": command}}, ensure_ascii=False)
    return f"{text}\n{CALL_TAGS[0]}\n{call}\n{CALL_TAGS[1]}"


def conversation(
    agent: Agent, case: Case, rng: random.Random, share: float, system: System | None = None
) -> list[dict[str, Any]]:
    """Messages of one trial: the task, a command, its result, the submission."""
    command = Command(case.right) if rng.random() < share else rng.choice(case.wrong)
    output = f"{command.shown}\n" if command.shown else ""
    returncode = rng.randint(1, 2) if "No such file" in output else 0
    return [
        *agent.opening(f"{case.instruction}\n", system or some_system(rng)),
        {"role": "assistant", "content": answer(rng.choice(PLAN), command.typed)},
        {"role": "tool", "content": agent.result(output, returncode)},
        {"role": "assistant", "content": answer(rng.choice(DONE), SUBMIT)},
    ]


def conversations(agent: Agent, count: int, seed: int, share: float) -> Iterator[tuple[Case, list[dict[str, Any]]]]:
    """Conversations with their cases."""
    rng = random.Random(seed)
    for case in cases(count, rng):
        yield case, conversation(agent, case, rng, share)


def record(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A line of a file for src.sft."""
    return {"messages": messages, "tools": [TOOL]}


def write(out: Path, count: int, seed: int, share: float) -> None:
    write_records(out, (record(messages) for _, messages in conversations(Agent(), count, seed, share)))


if __name__ == "__main__":
    from_command_line("scripts.shell.demonstrations", write)
