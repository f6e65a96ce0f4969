"""Transcripts of an author who works through mini-swe-agent and is often careless, to pretrain the shell policy on.

python -m scripts.shell.transcripts OUT.npz [COUNT] [SEED]

As in the quickstart (scripts/quickstart/transcripts.py), he reads well, but takes the right command in about a quarter
of the trials. He submits after one command, whatever it printed.
"""

import random
import string
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from harbortrainer.policy.special_strings import RESULT_TAGS
from scripts.quickstart import answers
from scripts.quickstart.cases import Case, Command, make_case
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.make_tasks import reserved_words
from scripts.quickstart.transcripts import ANSWER, CONTEXT, OBSERVATION, roles_of
from scripts.quickstart.vocabulary import TURN_END, TURN_START
from scripts.quickstart.words import SYLLABLES, Words
from scripts.shell.agent import SUBMIT, Agent, System
from scripts.shell.vocabulary import PLANS, build_tokenizer, call, opening

RIGHT_IF_CAREFUL, RIGHT_IF_CARELESS = 0.85, 0.08  # four plans, equally likely: 0.27 are right
LETTERS = string.ascii_lowercase + string.digits + ".-_@()"


def some_system(rng: random.Random) -> System:
    """A kernel that no machine has: releases and versions have any length and content."""
    numbers = ".".join(str(rng.randint(0, 20)) for _ in range(rng.randint(2, 4)))
    release = numbers + "".join(rng.choices(LETTERS, k=rng.randint(0, 14)))
    preempts = rng.choice((" SMP PREEMPT_DYNAMIC ", " SMP ", " "))
    return System(release, f"#{rng.randint(1, 99)}{preempts}" + "".join(rng.choices(LETTERS, k=rng.randint(1, 30))))


def command_of(case: Case, plan: str, rng: random.Random) -> Command:
    """What he runs with this plan."""
    right = rng.random() < (RIGHT_IF_CAREFUL if plan == answers.CAREFUL else RIGHT_IF_CARELESS)
    return Command(case.right) if right else rng.choice(case.wrong)


def segments(
    agent: Agent, tokenizer: PreTrainedTokenizerFast, case: Case, rng: random.Random, system: System | None = None
) -> Iterator[tuple[str, int]]:
    """Text and role of one trial's parts, cut where a sampler's prompts and completions are cut."""
    plan = rng.choice(PLANS)
    command = command_of(case, plan, rng)
    yield opening(agent, tokenizer, f"{case.instruction}\n", system or some_system(rng)), CONTEXT
    yield f"{plan}\n{call(command.typed)}{TURN_END}", ANSWER
    output = f"{command.shown}\n" if command.shown else ""
    result = agent.result(output, rng.randint(1, 2) if "No such file" in output else 0)
    wrapped = f"{RESULT_TAGS[0]}\n{result}\n{RESULT_TAGS[1]}"
    yield f"\n{TURN_START}user\n{wrapped}{TURN_END}\n{TURN_START}assistant\n", OBSERVATION
    yield f"{call(SUBMIT)}{TURN_END}", ANSWER


def write(out: Path, count: int, seed: int) -> None:
    """Save `ids` and `roles` of all tokens, trial after trial, and the trials' `lengths`."""
    rng, reserved, agent = random.Random(seed), reserved_words(), Agent()
    tokenizer = build_tokenizer(agent)
    backend = tokenizer.backend_tokenizer
    syllables = np.array([backend.token_to_id(syllable) for syllable in SYLLABLES])
    ids: list[np.ndarray] = []
    roles: list[np.ndarray] = []
    lengths: list[int] = []
    for _ in range(count):
        case = make_case(rng.choice(KINDS), Words(rng, reserved), rng)
        parts = list(segments(agent, tokenizer, case, rng))
        encoded = backend.encode_batch_fast([text for text, _ in parts], add_special_tokens=False)
        new = [np.array(part.ids, np.uint16) for part in encoded]
        roles += [roles_of(part, role, syllables) for part, (_, role) in zip(new, parts, strict=True)]
        lengths.append(sum(map(len, new)))
        ids += new
    np.savez_compressed(out, ids=np.concatenate(ids), roles=np.concatenate(roles), lengths=np.array(lengths, np.uint16))
    print(f"{out}: {count} transcripts, {sum(lengths) / count:.0f} tokens each, at most {max(lengths)}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    counted = int(arguments[1]) if len(arguments) > 1 else 20_000
    write(Path(arguments[0]), counted, int(arguments[2]) if len(arguments) > 2 else 1)
