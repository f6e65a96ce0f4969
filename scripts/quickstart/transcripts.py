"""Transcripts of an author who is often careless, to pretrain the quickstart policy on.

python -m scripts.quickstart.transcripts OUT.npz [COUNT] [SEED]

The author reads well and copies names without a mistake, but takes the right command only about 3 times in 10: what
reinforcement learning then has to find out is which plan, and which command of each kind, is rewarded.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.quickstart import answers, prompts
from scripts.quickstart.cases import Case, make_case
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.make_tasks import reserved_words
from scripts.quickstart.terminal import SimulatedTerminal
from scripts.quickstart.vocabulary import TURN_END, TURN_START, build_tokenizer
from scripts.quickstart.words import SYLLABLES, Words

RIGHT_IF_CAREFUL, RIGHT_IF_CARELESS = 0.70, 0.15
PLANS = (answers.CAREFUL, *answers.CARELESS)  # equally likely, so 0.29 are right
COMPLETE_AT_ONCE = 0.85
BROKEN = 0.01
LATE_SCREEN = 0.03
OTHER_HOSTNAME = 0.08  # stock Docker names a container by 12 hex digits
# What a token belongs to. A name's tokens after the first leave no choice: their loss shows how well names are copied.
CONTEXT, OBSERVATION, ANSWER, NAME = 0, 1, 2, 3


@dataclass(frozen=True)
class Exchange:
    said: str  # by Terminus-2
    answered: str  # by the policy


def act(case: Case, rng: random.Random) -> list[Exchange]:
    """One episode of the careless author."""
    hostname = "".join(rng.choices("0123456789abcdef", k=12)) if rng.random() < OTHER_HOSTNAME else prompts.HOSTNAME
    terminal = SimulatedTerminal(case, hostname)
    plan = rng.choice(PLANS)
    right = rng.random() < (RIGHT_IF_CAREFUL if plan == answers.CAREFUL else RIGHT_IF_CARELESS)
    command = case.right if right else rng.choice(case.wrong).typed
    analysis = rng.choice(answers.START)
    said = prompts.first_prompt(case.instruction + "\n", terminal.observe())
    exchanges = []
    if rng.random() < BROKEN:
        exchanges.append(Exchange(said, answers.broken(analysis, plan, command)))
        said, analysis = prompts.parse_failure(prompts.NO_JSON), answers.AGAIN
    complete = rng.random() < COMPLETE_AT_ONCE
    exchanges.append(Exchange(said, answers.answer(analysis, plan, command, complete=complete)))
    terminal.type(command + "\n")
    return exchanges + list(finish(terminal, rng, asked=complete))


def finish(terminal: SimulatedTerminal, rng: random.Random, *, asked: bool) -> Iterator[Exchange]:
    """The rest of an episode: wait for a late screen, say that the task is complete, and say it again."""
    late = rng.random() < LATE_SCREEN
    screen = terminal.observe(late=late)
    if late and not asked and rng.random() < 0.5:
        yield Exchange(screen, answers.answer(rng.choice(answers.DONE), answers.CHECK, None, complete=False))
        screen = terminal.observe()
    done = answers.answer(rng.choice(answers.DONE), answers.FINISH, None, complete=True)
    if not asked:
        yield Exchange(screen, done)
        screen = terminal.observe()
    yield Exchange(prompts.confirmation(screen), done)


def segments(exchanges: Sequence[Exchange]) -> Iterator[tuple[str, int]]:
    """Text and role of an episode's parts, cut where a sampler's prompts and completions are cut."""
    for number, exchange in enumerate(exchanges):
        opening = "\n" if number else ""
        text = f"{opening}{TURN_START}user\n{exchange.said}{TURN_END}\n{TURN_START}assistant\n"
        yield text, OBSERVATION if number else CONTEXT
        yield exchange.answered + TURN_END, ANSWER


def roles_of(ids: np.ndarray, role: int, syllables: np.ndarray) -> np.ndarray:
    """`role` for every token, NAME for the later syllables of an answer's names."""
    inside_name = np.isin(ids, syllables)
    later = inside_name & np.concatenate([[False], inside_name[:-1]])
    return np.where(later & (role == ANSWER), NAME, role).astype(np.uint8)


def write(out: Path, count: int, seed: int) -> None:
    """Save `ids` and `roles` of all tokens, episode after episode, and the episodes' `lengths`."""
    rng, reserved = random.Random(seed), reserved_words()
    tokenizer = build_tokenizer().backend_tokenizer
    syllables = np.array([tokenizer.token_to_id(syllable) for syllable in SYLLABLES])
    ids: list[np.ndarray] = []
    roles: list[np.ndarray] = []
    lengths: list[int] = []
    for _ in range(count):
        case = make_case(rng.choice(KINDS), Words(rng, reserved), rng)
        parts = list(segments(act(case, rng)))
        encoded = tokenizer.encode_batch_fast([text for text, _ in parts], add_special_tokens=False)
        new = [np.array(part.ids, np.uint16) for part in encoded]
        roles += [roles_of(part, role, syllables) for part, (_, role) in zip(new, parts, strict=True)]
        lengths.append(sum(map(len, new)))
        ids += new
    np.savez_compressed(out, ids=np.concatenate(ids), roles=np.concatenate(roles), lengths=np.array(lengths, np.uint16))
    print(f"{out}: {count} transcripts, {sum(lengths) / count:.0f} tokens each, at most {max(lengths)}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    write(
        Path(arguments[0]),
        int(arguments[1]) if len(arguments) > 1 else 200_000,
        int(arguments[2]) if len(arguments) > 2 else 1,
    )
