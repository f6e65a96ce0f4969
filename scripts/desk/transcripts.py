"""Transcripts of the desk's author, to pretrain the desk policy on.

python -m scripts.desk.transcripts OUT.npz [COUNT] [SEED]
"""

import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from examples.desk.tasks import cases
from examples.desk.words import SYLLABLES
from harbortrainer.policy.special_strings import RESULT_TAGS
from scripts.desk.author import Said, answers, converse, domain_of, new_cases
from scripts.desk.vocabulary import build_tokenizer, opening
from scripts.quickstart.transcripts import ANSWER, CONTEXT, OBSERVATION, roles_of
from scripts.quickstart.vocabulary import TURN_END, TURN_START

BLOCK = 250  # cases of one database: finding a customer's orders looks at all of them


def reserved_words() -> set[str]:
    """The made-up words of all tasks, training and held out, which no transcript may use."""
    return {word for _, case in cases().values() for word in case.words}


def segments(tokenizer: PreTrainedTokenizerFast, said: Sequence[Said]) -> Iterator[tuple[str, int]]:
    """Text and role of a conversation's parts, cut where a sampler's prompts and completions are cut."""
    for number, one in enumerate(said):
        text = f"{RESULT_TAGS[0]}\n{one.text}\n{RESULT_TAGS[1]}" if one.role == "tool" else one.text
        turn = f"\n{TURN_START}user\n{text}{TURN_END}\n{TURN_START}assistant\n"
        yield (turn, OBSERVATION) if number else (opening(tokenizer, text), CONTEXT)
        yield one.answered + TURN_END, ANSWER


async def write(out: Path, count: int, seed: int) -> None:
    """Save `ids` and `roles` of all tokens, conversation after conversation, their `lengths` and `rewards`."""
    rng, reserved, tokenizer = random.Random(seed), reserved_words(), build_tokenizer()
    backend = tokenizer.backend_tokenizer
    syllables = np.array([backend.token_to_id(syllable) for syllable in SYLLABLES])
    ids: list[np.ndarray] = []
    roles: list[np.ndarray] = []
    lengths: list[int] = []
    rewards: list[float] = []
    while len(lengths) < count:
        made = new_cases(rng, reserved, min(BLOCK, count - len(lengths)))
        desk = domain_of(made)
        for key, case in made.items():
            said, reward = await converse(desk, key, answers(case, rng))
            parts = list(segments(tokenizer, said))
            encoded = backend.encode_batch_fast([text for text, _ in parts], add_special_tokens=False)
            new = [np.array(part.ids, np.uint16) for part in encoded]
            roles += [roles_of(part, role, syllables) for part, (_, role) in zip(new, parts, strict=True)]
            lengths.append(sum(map(len, new)))
            rewards.append(reward)
            ids += new
    np.savez_compressed(
        out,
        ids=np.concatenate(ids),
        roles=np.concatenate(roles),
        lengths=np.array(lengths, np.uint16),
        rewards=np.array(rewards, np.float32),
    )
    said = f"{sum(lengths) / count:.0f} tokens each, at most {max(lengths)}"
    print(f"{out}: {count} transcripts, {said}, reward {np.mean(rewards):.3f}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    counted = int(arguments[1]) if len(arguments) > 1 else 40_000
    asyncio.run(write(Path(arguments[0]), counted, int(arguments[2]) if len(arguments) > 2 else 1))
