"""Ordinary English words for names and contents, in three pools that share no word: training, held out, demonstrations.

`words.txt` has one word a line. No word contains another, so a search for one never finds another.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from scripts.quickstart.words import Words

SEED = 20261122
TRAINING, HELD_OUT = 620, 310  # words of the two pools; the demonstrations have the rest


class EnglishWords(Words):
    """Draws the words of a pool, each at most once. Raises IndexError when the pool is empty."""

    def __init__(self, rng: random.Random, pool: Sequence[str]) -> None:
        super().__init__(rng)
        self._left = rng.sample(pool, len(pool))

    def word(self) -> str:
        return self._left.pop()


def pools() -> tuple[list[str], list[str], list[str]]:
    """Words for training tasks, for held-out tasks, for demonstrations; the same in every call."""
    words = (Path(__file__).parent / "words.txt").read_text().split()
    random.Random(SEED).shuffle(words)
    return words[:TRAINING], words[TRAINING : TRAINING + HELD_OUT], words[TRAINING + HELD_OUT :]
