"""The kinds of quickstart tasks: wordings, the right command, tempting wrong ones, and how the result is checked."""

import random

from scripts.quickstart.cases import Command, Kind, quoted
from scripts.quickstart.words import Words


def _new_file(words: Words, _: random.Random) -> dict[str, str]:
    return {"file": words.file(), "text": words.line()}


def _with_lines(words: Words, lines: list[str]) -> dict[str, str]:
    return {"file": words.file(), "lines": "\n".join(lines), "quoted": quoted(lines)}


def _changed_file(words: Words, _: random.Random) -> dict[str, str]:
    return _with_lines(words, [words.line(), words.line()]) | {"text": words.line()}


def _two_files(words: Words, _: random.Random) -> dict[str, str]:
    return _with_lines(words, [words.line()]) | {"other": words.file()}


def _folder(words: Words, _: random.Random) -> dict[str, str]:
    return {"folder": words.word()}


def _script(words: Words, _: random.Random) -> dict[str, str]:
    word = words.word()
    return {"script": words.word() + ".sh", "lines": f"echo {word}", "word": word}


def _counted(words: Words, rng: random.Random) -> dict[str, str]:
    lines = [words.line() for _ in range(rng.randint(2, 9))]
    return _with_lines(words, lines) | {
        "other": words.file(),
        "number": str(len(lines)),
        "bytes": str(sum(len(line) + 1 for line in lines)),
    }


def _searched(words: Words, rng: random.Random) -> dict[str, str]:
    word = words.word()
    hits = [f"{words.word()} {word}" for _ in range(rng.randint(1, 2))]
    lines = hits + [words.line() for _ in range(rng.randint(1, 3))]
    rng.shuffle(lines)
    hits = [line for line in lines if line in hits]
    return _with_lines(words, lines) | {
        "other": words.file(),
        "word": word,
        "hits": "\n".join(hits),
        "quoted_hits": quoted(hits),
    }


_MISSING = "{program}: cannot stat '{{{name}}}': No such file or directory"

KINDS = (
    Kind(
        "create",
        _new_file,
        (
            "Create a file named {file} that contains the single line '{text}'.",
            "Write the line '{text}' to a new file called {file}.",
            "Make a text file {file} whose only line is '{text}'.",
        ),
        "echo '{text}' > {file}",
        (
            Command("echo '{text}' {file}", "{text} {file}"),
            Command("echo '{text}' > /tmp/{file}"),
            Command("touch {file}"),
        ),
        "printf '%s\\n' '{text}' | cmp -s - /app/{file}",
    ),
    Kind(
        "append",
        _changed_file,
        (
            "Append the line '{text}' to the file {file}.",
            "Add the line '{text}' at the end of {file} and keep what is already there.",
            "The file {file} needs one more line at its end: '{text}'.",
        ),
        "echo '{text}' >> {file}",
        (
            Command("echo '{text}' > {file}"),
            Command("echo '{text}' {file}", "{text} {file}"),
            Command("cat {file}", "{lines}"),
        ),
        "printf '%s\\n' {quoted} '{text}' | cmp -s - /app/{file}",
        "{file}",
    ),
    Kind(
        "copy",
        _two_files,
        (
            "Copy the file {file} to {other}.",
            "Make a copy of {file} named {other}.",
            "Duplicate {file} under the name {other} and keep the original.",
        ),
        "cp {file} {other}",
        (
            Command("mv {file} {other}"),
            Command("cp {other} {file}", _MISSING.format(program="cp", name="other")),
            Command("touch {other}"),
        ),
        "printf '%s\\n' {quoted} | cmp -s - /app/{other} && cmp -s /app/{file} /app/{other}",
        "{file}",
    ),
    Kind(
        "rename",
        _two_files,
        (
            "Rename the file {file} to {other}.",
            "Give {file} the new name {other}.",
            "Move {file} to {other} so that only the new name exists.",
        ),
        "mv {file} {other}",
        (
            Command("cp {file} {other}"),
            Command("mv {other} {file}", _MISSING.format(program="mv", name="other")),
            Command("touch {other}"),
        ),
        "printf '%s\\n' {quoted} | cmp -s - /app/{other} && [ ! -e /app/{file} ]",
        "{file}",
    ),
    Kind(
        "folder",
        _folder,
        (
            "Create a directory named {folder}.",
            "Make a new folder called {folder}.",
            "There should be an empty directory {folder}; create it.",
        ),
        "mkdir {folder}",
        (
            Command("touch {folder}"),
            Command("mkdir /tmp/{folder}"),
            Command("cd {folder}", "bash: cd: {folder}: No such file or directory"),
        ),
        "[ -d /app/{folder} ]",
    ),
    Kind(
        "permissions",
        _script,
        (
            "Make the script {script} executable.",
            "Change the permissions of {script} so that it can be executed.",
            "The script {script} cannot be run yet; give it the execute permission.",
        ),
        "chmod +x {script}",
        (
            Command("chmod +r {script}"),
            Command("chmod -x {script}"),
            Command("bash {script}", "{word}"),
        ),
        "[ -x /app/{script} ]",
        "{script}",
    ),
    Kind(
        "count",
        _counted,
        (
            "Count the lines of {file} and write only the number to {other}.",
            "Write the number of lines of {file}, and nothing else, to the file {other}.",
            "How many lines does {file} have? Put just the number into {other}.",
        ),
        "wc -l < {file} > {other}",
        (
            Command("wc -l {file} > {other}"),
            Command("wc -c < {file} > {other}"),
            Command("wc -l {file}", "{number} {file}"),
        ),
        '[ "$(cat /app/{other})" = {number} ]',
        "{file}",
    ),
    Kind(
        "search",
        _searched,
        (
            "Write all lines of {file} that contain the word {word} to {other}.",
            "Search {file} for the word {word} and save the matching lines in {other}.",
            "Find the lines with {word} in the file {file} and store them in {other}.",
        ),
        "grep {word} {file} > {other}",
        (
            Command("grep -v {word} {file} > {other}"),
            Command("grep {word} {file}", "{hits}"),
            Command("cp {file} {other}"),
        ),
        "printf '%s\\n' {quoted_hits} | cmp -s - /app/{other}",
        "{file}",
    ),
)
