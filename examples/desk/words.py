"""Made-up words of two or three syllables."""

import random
from collections.abc import Set

CONSONANTS, VOWELS = "bcdfghjklmnprstvz", "aeiou"
SYLLABLES = tuple(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)


class FreshWords:
    """Draws made-up words, none twice, and none that is reserved."""

    def __init__(self, rng: random.Random, reserved: Set[str] = frozenset()) -> None:
        self._rng = rng
        self._used = set(reserved)

    def word(self) -> str:
        while (word := "".join(self._rng.choices(SYLLABLES, k=self._rng.choice((2, 2, 3))))) in self._used:
            pass
        self._used.add(word)
        return word
