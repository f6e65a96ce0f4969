"""What a quickstart task is made of: a kind, and a case of it with every name and content filled in."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scripts.quickstart.words import Words

Values = Mapping[str, str]
ENDINGS = ("", " Work in the current directory.", " Everything happens in /app.")


@dataclass(frozen=True)
class Command:
    """A shell command and what the terminal shows for it; both are templates of a case's values."""

    typed: str
    shown: str = ""


@dataclass(frozen=True)
class Kind:
    name: str
    values: Callable[[Words, random.Random], dict[str, str]]
    wordings: tuple[str, ...]
    right: str
    wrong: tuple[Command, ...]
    check: str  # a shell condition
    start_file: str = ""  # template of its name; its content is the value `lines`


@dataclass(frozen=True)
class Case:
    """One task: a kind with every name and content filled in."""

    kind: Kind
    values: Values
    instruction: str
    right: str
    wrong: tuple[Command, ...]
    check: str
    start_file: str  # "" = none

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.values["lines"].split("\n")) if self.start_file else ()

    @property
    def words(self) -> set[str]:
        """Every made-up word of the case."""
        text = " ".join(self.values.values()).replace(".", " ").replace("'", " ")
        return {word for word in text.split() if word.isalpha()}


def make_case(kind: Kind, words: Words, rng: random.Random, wording: int | None = None) -> Case:
    """A new case; `wording` picks one of the kind's wordings, None = any."""
    values = kind.values(words, rng)
    sentence = rng.choice(kind.wordings) if wording is None else kind.wordings[wording % len(kind.wordings)]
    return Case(
        kind=kind,
        values=values,
        instruction=(sentence + rng.choice(ENDINGS)).format(**values),
        right=kind.right.format(**values),
        wrong=tuple(Command(c.typed.format(**values), c.shown.format(**values)) for c in kind.wrong),
        check=kind.check.format(**values),
        start_file=kind.start_file.format(**values),
    )


def quoted(lines: Sequence[str]) -> str:
    return " ".join(f"'{line}'" for line in lines)
