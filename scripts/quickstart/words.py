"""Names for files, folders and contents: two or three syllables, each one token of the quickstart policy."""

from examples.desk.words import SYLLABLES as SYLLABLES
from examples.desk.words import FreshWords

EXTENSIONS = (".txt", ".md", ".log", ".csv")


class Words(FreshWords):
    def file(self) -> str:
        return self.word() + self._rng.choice(EXTENSIONS)

    def line(self) -> str:
        return f"{self.word()} {self.word()}"
