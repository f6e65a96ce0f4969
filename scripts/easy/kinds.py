"""The twelve kinds of terminal-easy: the quickstart's eight, and sort, first, remove, replace."""

import random

from scripts.quickstart.cases import Command, Kind, quoted
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.words import Words


def _with_lines(words: Words, lines: list[str]) -> dict[str, str]:
    return {"file": words.file(), "lines": "\n".join(lines), "quoted": quoted(lines)}


def _sorted(words: Words, rng: random.Random) -> dict[str, str]:
    lines = [words.line() for _ in range(rng.randint(3, 5))]
    while lines == sorted(lines):
        rng.shuffle(lines)
    ordered = sorted(lines)
    return _with_lines(words, lines) | {
        "other": words.file(),
        "ordered": "\n".join(ordered),
        "quoted_ordered": quoted(ordered),
    }


def _first(words: Words, rng: random.Random) -> dict[str, str]:
    lines = [words.line() for _ in range(rng.randint(2, 5))]
    return _with_lines(words, lines) | {"other": words.file(), "head": lines[0]}


def _removed(words: Words, _: random.Random) -> dict[str, str]:
    return _with_lines(words, [words.line()])


def _replaced(words: Words, rng: random.Random) -> dict[str, str]:
    word, new = words.word(), words.word()
    lines = [f"{word} {words.word()}", *(words.line() for _ in range(rng.randint(1, 2)))]
    rng.shuffle(lines)
    changed = [line.replace(word, new) for line in lines]
    return _with_lines(words, lines) | {"word": word, "new": new, "quoted_changed": quoted(changed)}


EASY_KINDS = (
    *KINDS,
    Kind(
        "sort",
        _sorted,
        (
            "Sort the lines of {file} alphabetically and write them to {other}.",
            "Put the lines of {file} in alphabetical order into the file {other}.",
            "Write a sorted copy of {file} to {other}.",
        ),
        "sort {file} > {other}",
        (
            Command("sort {file}", "{ordered}"),
            Command("sort -r {file} > {other}"),
            Command("cp {file} {other}"),
        ),
        "printf '%s\\n' {quoted_ordered} | cmp -s - /app/{other}",
        "{file}",
    ),
    Kind(
        "first",
        _first,
        (
            "Write the first line of {file} to {other}.",
            "Save only the first line of {file} in the file {other}.",
            "Take the first line of {file} and put it into {other}.",
        ),
        "head -n 1 {file} > {other}",
        (
            Command("tail -n 1 {file} > {other}"),
            Command("head -n 1 {file}", "{head}"),
            Command("cp {file} {other}"),
        ),
        "printf '%s\\n' '{head}' | cmp -s - /app/{other}",
        "{file}",
    ),
    Kind(
        "remove",
        _removed,
        (
            "Delete the file {file}.",
            "Remove {file} from the directory.",
            "The file {file} is not needed any more; delete it.",
        ),
        "rm {file}",
        (
            Command("cat {file}", "{lines}"),
            Command("truncate -s 0 {file}"),
            Command("ls {file}", "{file}"),
        ),
        "[ ! -e /app/{file} ]",
        "{file}",
    ),
    Kind(
        "replace",
        _replaced,
        (
            "Replace the word {word} by {new} in the file {file}.",
            "In {file}, change {word} to {new}.",
            "The file {file} says {word} where it should say {new}; correct it.",
        ),
        "sed -i 's/{word}/{new}/' {file}",
        (
            Command("sed -i 's/{new}/{word}/' {file}"),
            Command("echo {new} > {file}"),
            Command("echo {new} >> {file}"),
        ),
        "printf '%s\\n' {quoted_changed} | cmp -s - /app/{file}",
        "{file}",
    ),
)
