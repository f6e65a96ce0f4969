"""Names for files, folders and contents: two or three syllables, each one token of the quickstart policy."""

import random
from collections.abc import Set as AbstractSet

CONSONANTS, VOWELS = "bcdfghjklmnprstvz", "aeiou"
SYLLABLES = tuple(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)
EXTENSIONS = (".txt", ".md", ".log", ".csv")


class Words:
    """Draws words, none twice in one case, and none that is reserved for somebody else."""

    def __init__(self, rng: random.Random, reserved: AbstractSet[str] = frozenset()) -> None:
        self._rng = rng
        self._used = set(reserved)

    def word(self) -> str:
        while (word := "".join(self._rng.choices(SYLLABLES, k=self._rng.choice((2, 2, 3))))) in self._used:
            pass
        self._used.add(word)
        return word

    def file(self) -> str:
        return self.word() + self._rng.choice(EXTENSIONS)

    def line(self) -> str:
        return f"{self.word()} {self.word()}"
