"""The template of an instruction: its words with whatever varies between instances of one kind of task masked."""

import re
import unicodedata
from collections.abc import Set

FEWEST_WORDS = 3  # fixed words that a template needs to say anything: "run <path>" fits unrelated tasks
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
_SHELL = """a all and app awk bash bin cat chmod cmp count cp cut date diff directory do echo else exit file files find
fi folder for from grep gzip head if in is it json lines list ls make mkdir mv name not number of or out output path
printf python read result reward rm run script sed sh size sort tail tar test text that the then to touch tr true
uniq wc while with word words zip"""
_PLACE = """a all and are as at current directory do does everything file files folder from happens here in inside is it
its now of on please place should stay task the there this to under will work working you your"""
NUMBER_WORDS = frozenset(_NUMBERS.split())
SHELL_WORDS = frozenset(_SHELL.split())  # of an instruction and of its test too, and no names that the task gives
# A sentence of these alone says where the work is done or that it should be, and nothing of what it is.
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
_WORD = re.compile(r"<\w>|[^\W_]+(?:'[a-z]+)?")
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n")


def plain_text(text: str) -> str:
    """Text in which spacing, case and forms of the same character make no difference."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def template(instruction: str, code_words: Set[str] = frozenset()) -> str | None:
    """Words of the instruction, one space between, with quoted text, paths, names and numbers as `<s>`, `<p>`.

    `code_words` are the words of the task's own test and solution: a bare word of the instruction among them is a name
    that this task gives to something ("a directory named <p>"), unless it begins a sentence or is one of SHELL_WORDS.
    Sentences that only say where are left out. None when fewer than FEWEST_WORDS words are left.
    """
    text = unicodedata.normalize("NFKC", instruction)
    text = _NAMES.sub(" <p> ", _QUOTED.sub(" <s> ", text))
    words: list[str] = []
    for sentence in _SENTENCE.split(text):
        said = _WORD.findall(sentence.lower())
        if all(word.startswith("<") or word in PLACE_WORDS for word in said):
            continue
        for position, word in enumerate(said):
            named = word in NUMBER_WORDS or (position > 0 and word in code_words and word not in SHELL_WORDS)
            words.append("<p>" if named else word)
    fixed = sum(not word.startswith("<") for word in words)
    return " ".join(words) if fixed >= FEWEST_WORDS else None


def code_words(code: str) -> frozenset[str]:
    """Words of shell or Python code in lower case, comments left out."""
    lines = (line for line in code.splitlines() if not line.lstrip().startswith("#"))
    return frozenset(re.findall(r"[^\W_]+", "\n".join(lines).lower()))
