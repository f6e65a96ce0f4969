"""Digests by which equal tasks and tasks of one family are found, even when copied, renamed or reworded."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

SAME_FILES, SAME_TEXT = "the same files", "the same but for spacing, case or task.toml"
SAME_INSTRUCTION, SAME_TEMPLATE = "the same instruction", "the same instruction template"
SAME_CHECK, SAME_ENVIRONMENT = "the same test in the same environment", "the same environment"
SAME_FAMILY, SAME_NAME = "the same metadata.family", "the same family by their names"
SAME_GOLD, SAME_USER = "the same gold actions", "the same user"
DUPLICATES = (SAME_FILES, SAME_TEXT)
REASONS = (
    *DUPLICATES,
    SAME_INSTRUCTION,
    SAME_TEMPLATE,
    SAME_CHECK,
    SAME_GOLD,
    SAME_ENVIRONMENT,
    SAME_FAMILY,
    SAME_NAME,
    SAME_USER,
)  # strongest first
FEWEST_WORDS = 3  # fixed words of a template: with fewer ("run <path>") it fits unrelated tasks
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
_SHELL = """a all and app awk bash bin cat chmod cmp count cp cut date diff directory do echo else exit file files find
fi folder for from grep gzip head if in is it json lines list ls make mkdir mv name not number of or out output path
printf python read result reward rm run script sed sh size sort tail tar test text that the then to touch tr true
uniq wc while with word words zip"""
_PLACE = """a all and are as at current directory do does everything file files folder from happens here in inside is it
its now of on please place should stay task the there this to under will work working you your"""
NUMBER_WORDS = frozenset(_NUMBERS.split())
SHELL_WORDS = frozenset(_SHELL.split())  # common in instructions and in tests: not names that the task gives
# A sentence of only these says where the work is done, not what it is.
PLACE_WORDS = frozenset(_PLACE.split())
_QUOTED = re.compile(
    r"```.*?```|`[^`\n]*`|\"[^\"\n]*\"|\u201c[^\u201d]*\u201d|\u2018[^\u2019]*\u2019|(?<!\w)'[^'\n]*'(?!\w)", re.DOTALL
)
_NAMES = re.compile(
    r"\b\w+://\S+"  # addresses
    r"|[~.]?/?[\w.@+-]*/[\w./@+*-]*"  # paths
    r"|\b[\w-]+(?:\.[A-Za-z]\w*)+\b"  # names with an extension
    r"|\b\w*[A-Za-z]\w*[_\d]\w*\b|\b\w*_\w+\b"  # identifiers with digits or underscores
    r"|\b[a-z]+[A-Z]\w*\b"  # camelCase
    r"|(?<![\w.])[-+]?\d[\d.,:]*\w*"  # numbers
)
_NAME_LIKE = re.compile(r"(?<!\S)\S*(?:[/._\d]|[a-z][A-Z])\S*")  # words in which _NAMES may find something
_WORD = re.compile(r"<\w>|[^\W_]+(?:'[a-z]+)?")
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n")


@dataclass(frozen=True, slots=True)
class Identity:
    """Keys. `keys`: (reason, digest); two tasks that share one are related for that reason.

    `content`: the digest of the task. `family`: as its author declares it; "" = none.
    """

    name: str
    content: str
    keys: tuple[tuple[str, str], ...]
    family: str


def digest_of(parts: Iterable[str]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return total.hexdigest()


def plain_text(text: str) -> str:
    """Return the text in lower case, with single spaces and normalized characters."""
    return " ".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).lower().split())


def template(instruction: str, code_words: Set[str] = frozenset()) -> str | None:
    """Get words of the instruction, separated by one space, with quoted text, paths, names and numbers as `<s>`, `<p>`.

    `code_words`: words of the task's test and solution. A bare word of the instruction among them is a name that the
    task gives ("a directory named <p>"), unless it begins a sentence or is one of SHELL_WORDS. Sentences of PLACE_WORDS
    are left out. None when fewer than FEWEST_WORDS words are left.
    """
    words: list[str] = []
    names = NUMBER_WORDS | (code_words - SHELL_WORDS)
    for first, *rest in _sentences(instruction):
        words.append("<p>" if first in NUMBER_WORDS else first)
        words += ["<p>" if word in names else word for word in rest]
    fixed = islice((word for word in words if not word.startswith("<")), FEWEST_WORDS)
    return " ".join(words) if len(list(fixed)) == FEWEST_WORDS else None


@lru_cache(maxsize=1)
def _sentences(instruction: str) -> list[list[str]]:
    """The words of each sentence that says more than a place, with quoted text as <s>, and names as <p>."""
    text = _QUOTED.sub(" <s> ", unicodedata.normalize("NFKC", instruction))
    marked = _NAME_LIKE.sub(lambda word: _NAMES.sub(" <p> ", word[0]), text)
    found = (_WORD.findall(sentence.lower()) for sentence in _SENTENCE.split(marked))
    return [one for one in found if not all(word.startswith("<") for word in set(one) - PLACE_WORDS)]


def code_words(code: str) -> frozenset[str]:
    """Return words of shell or Python code in lower case, without comments."""
    lines = (line for line in code.splitlines() if not line.lstrip().startswith("#"))
    return frozenset(re.findall(r"[^\W_]+", "\n".join(lines).lower()))
