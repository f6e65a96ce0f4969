"""Conversations of a careless author with Terminus-2 over terminal-easy's kinds of task, to warm up a policy by SFT.

python -m scripts.easy.demonstrations FILE [COUNT=2560] [SEED=1] [SHARE=0.35]

A line of FILE is one conversation: {"messages": [{"role": "user", "content": ...}, ...]}. The prompts are Terminus-2's
own, the words are in no task of terminal-easy. The author writes valid JSON and copies names without a
mistake, but takes the right command in SHARE of the conversations only: which command is right is left to the rewards.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.easy.kinds import EASY_KINDS
from scripts.easy.words import EnglishWords, pools
from scripts.quickstart import answers, prompts
from scripts.quickstart.cases import Case, make_case
from scripts.quickstart.terminal import SimulatedTerminal

COMPLETE_AT_ONCE = 0.8  # share of conversations that end with the first command, without a look at its output
ANALYSIS = (
    "The terminal is ready in /app and nothing was done yet.",
    "The shell waits for a command in /app.",
    "Nothing was typed so far; the task is clear.",
    "I am in /app with an empty prompt.",
)
PLAN = (
    "I will run one command that does what is asked.",
    "One command should be enough for this.",
    "Type the command and look at the result.",
    "Run a single command, then say that the task is complete.",
)
DONE = (
    "The command was executed.",
    "The command ran and the prompt is back.",
    "The work is finished.",
)
FINISH = (
    "Mark the task as complete.",
    "Nothing is left to do, so the task is complete.",
)


def conversation(case: Case, rng: random.Random, share: float) -> list[dict[str, str]]:
    """Messages of one trial: the task, a command, perhaps a look at the screen, the confirmation."""
    terminal, messages = SimulatedTerminal(case), list[dict[str, str]]()

    def turn(prompt: str, answer: str) -> None:
        messages.extend([{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}])

    def done() -> str:
        return answers.answer(rng.choice(DONE), rng.choice(FINISH), None, complete=True)

    command = case.right if rng.random() < share else rng.choice(case.wrong).typed
    complete = rng.random() < COMPLETE_AT_ONCE
    first = prompts.first_prompt(case.instruction + "\n", terminal.observe())
    turn(first, answers.answer(rng.choice(ANALYSIS), rng.choice(PLAN), command, complete=complete))
    terminal.type(command + "\n")
    if not complete:
        turn(terminal.observe(), done())
    turn(prompts.confirmation(terminal.observe()), done())
    return messages


def cases(count: int, rng: random.Random) -> Iterator[Case]:
    """The kinds in turn, in words that are in no task. Each is drawn from `rng` when it is asked for."""
    *_, pool = pools()
    for number in range(count):
        yield make_case(EASY_KINDS[number % len(EASY_KINDS)], EnglishWords(rng, pool), rng)


def conversations(count: int, seed: int, share: float) -> Iterator[tuple[Case, list[dict[str, str]]]]:
    """Conversations with their cases."""
    rng = random.Random(seed)
    for case in cases(count, rng):
        yield case, conversation(case, rng, share)


def write(out: Path, count: int, seed: int, share: float) -> None:
    write_records(out, ({"messages": messages} for _, messages in conversations(count, seed, share)))


def write_records(out: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """A file for src.sft, a record a line."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record) + "\n" for record in records]
    out.write_text("".join(lines))
    print(f"{out}: {len(lines)} conversations of {len(EASY_KINDS)} kinds")


def from_command_line(module: str, write: Callable[[Path, int, int, float], None]) -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("count", type=int, nargs="?", default=2560, help="conversations (%(default)s)")
    parser.add_argument("seed", type=int, nargs="?", default=1, help="of the tasks and the author (%(default)s)")
    parser.add_argument("share", type=float, nargs="?", default=0.35, help="in which the author is right (%(default)s)")
    given = parser.parse_args()
    write(given.file, given.count, given.seed, given.share)


if __name__ == "__main__":
    from_command_line("scripts.easy.demonstrations", write)
