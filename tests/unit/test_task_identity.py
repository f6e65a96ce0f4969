"""Planted leaks are found, each for its reason; tasks of different families are left alone."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harbortrainer.tasks.folder_identity import holds_data
from harbortrainer.tasks.folders import digest, load_tasks
from harbortrainer.tasks.identity import (
    SAME_CHECK,
    SAME_ENVIRONMENT,
    SAME_FAMILY,
    SAME_FILES,
    SAME_INSTRUCTION,
    SAME_TEMPLATE,
    SAME_TEXT,
    Identity,
    template,
)
from harbortrainer.tasks.split import duplicates, families, overlaps
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import identify
from tests.support.task_folder import BASE, write_task

QUICKSTART = Path("datasets/quickstart")


@pytest.fixture(scope="module")
def quickstart() -> list[Identity]:
    return [identify(task) for task in load_tasks(str(QUICKSTART))]


def task_at(path: Path) -> Task:
    return Task(path.name, path, digest(path))


def edit(file: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def edited(task: Path) -> None:
        (task / file).write_text(change((task / file).read_text()))

    return edited


def nothing(task: Path) -> None:
    """A copy under another name."""


def other_words(task: Path) -> None:
    """The made-up names of a quickstart task replaced everywhere."""
    words = re.findall(r"'([a-z ]+)'|\b(\w+)\.\w+\b|named (\w+)", (task / "instruction.md").read_text())
    for word in {part for found in words for name in found for part in name.split()}:
        for file in ("instruction.md", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh"):
            edit(file, lambda text, word=word: re.sub(rf"\b{word}\b", f"x{word[::-1]}", text))(task)


def new_toml(task: Path) -> None:
    edit("task.toml", lambda text: text.replace("timeout_sec = 120.0", "timeout_sec = 99.0"))(task)


def reworded(task: Path) -> None:
    (task / "instruction.md").write_text("Please see to it that what the test wants is true.\n")


LEAKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "renamed copy": (nothing, SAME_FILES),
    "changed task.toml": (new_toml, SAME_TEXT),
    "whitespace": (edit("instruction.md", lambda text: f"  {text.replace(' ', '  ')}\n\n"), SAME_TEXT),
    "whitespace in the test": (edit("tests/test.sh", lambda text: text.replace("\n", "\n\n")), SAME_TEXT),
    "case": (edit("instruction.md", str.upper), SAME_TEXT),
    "same instruction, other test": (edit("tests/test.sh", lambda text: f"{text}true\n"), SAME_INSTRUCTION),
    "names and numbers": (other_words, SAME_TEMPLATE),
    "another sentence about the place": (
        lambda task: (other_words(task), edit("instruction.md", lambda text: f"{text.strip()} Work here.")(task))[1],
        SAME_TEMPLATE,
    ),
    "other words for the same test": (reworded, SAME_CHECK),
}


@pytest.mark.parametrize("name", ["create-1", "folder-1", "count-1", "permissions-2", "search-3"])
@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_found(tmp_path: Path, quickstart: list[Identity], name: str, leak: str) -> None:
    change, reason = LEAKS[leak]
    planted = tmp_path / "planted"
    shutil.copytree(QUICKSTART / name, planted)
    change(planted)
    others = [task for task in quickstart if task.name.split("-")[0] != name.split("-")[0]]
    train = [*others, *(task for task in quickstart if task.name == name)]
    held_out = [identify(task_at(planted))]
    assert [(found.train, found.held_out, found.reason) for found in overlaps(train, held_out)] == [
        (name, "planted", reason)
    ]
    assert overlaps(others, held_out) == []


def test_kinds_of_the_quickstart_are_not_taken_for_each_other(quickstart: list[Identity]) -> None:
    for name, family in families(quickstart).items():
        assert name.split("-")[0] == family.split("-")[0]
    assert duplicates(quickstart) == []


def test_declared_families(tmp_path: Path) -> None:
    """They join what looks different, and keep an environment that many share from joining what they tell apart."""
    dockerfile = f"{BASE}RUN seq 9 > /data\n"
    given = {"a": "x", "b": "x", "c": "y", "d": ""}
    tasks = []
    for name, family in given.items():
        toml = f'[metadata]\nfamily = "{family}"\n' if family else ""
        files = {"instruction.md": f"{name * 3} {name * 4} {name * 5}\n", "tests/test.sh": name}
        tasks.append(task_at(write_task(tmp_path / name, toml=toml, files=files, dockerfile=dockerfile)))
    a, b, c, d = map(identify, tasks)
    assert [found.reason for found in overlaps([a], [b])] == [SAME_ENVIRONMENT]
    assert overlaps([a], [c]) == []
    assert [found.reason for found in overlaps([a], [d])] == [SAME_ENVIRONMENT]
    assert families([a, b, c]) == {"a": "a", "b": "a", "c": "c"}
    (Path(tasks[0].ref) / "environment" / "Dockerfile").write_text(BASE)
    assert [found.reason for found in overlaps([identify(task_at(Path(tasks[0].ref)))], [b])] == [SAME_FAMILY]


@pytest.mark.parametrize(
    ("dockerfile", "files", "image", "data"),
    [
        ("FROM debian\nWORKDIR /app\n", {}, None, False),
        ("FROM debian\n# RUN make\nRUN apt-get update && \\\n  apt-get install -y git\n", {}, None, False),
        ("FROM debian\nRUN pip install uv==1 && mkdir -p /app && useradd dev\n", {}, None, False),
        ("FROM debian\nRUN git clone x /app\n", {}, None, True),
        ("FROM debian\nRUN cd /app && seq 9 > data\n", {}, None, True),
        ("FROM debian\nRUN <<EOF\ntrue\nEOF\n", {}, None, True),
        ("FROM debian\nCOPY . /app\n", {}, None, True),
        ("FROM debian\n", {"data.csv": "1"}, None, True),
        (None, {}, "python:3.12-slim", False),
        (None, {}, "harbortrainer/base:bookworm", False),
        (None, {}, "somebody/task-one:20251031", True),
    ],
)
def test_a_plain_image_joins_nothing(
    tmp_path: Path, dockerfile: str | None, files: dict[str, str], image: str | None, data: bool
) -> None:
    for name, text in (files | ({"Dockerfile": dockerfile} if dockerfile else {})).items():
        (tmp_path / name).write_text(text)
    assert holds_data(tmp_path, image) is data


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Copy the file a.txt to b.txt.", "Copy the file c.md to deep/d.md.", True),
        ("Copy the file a.txt to b.txt.", "Rename the file a.txt to b.txt.", False),
        ("Print line 3 of `a b` and stop.", "Print line 17 of `c` and stop.", True),
        ("Write 'one' into three files please.", 'Write "two words" into five files please.', True),
        ("Sort the rows of table_1 by date.", "Sort the rows of table_2 by name.", False),
        ("Serve http://localhost:80 until told otherwise.", "Serve https://host:8443/x until told otherwise.", True),
    ],
)
def test_templates(one: str, other: str, same: bool) -> None:
    assert template(one) is not None
    assert (template(one) == template(other)) is same


def test_bare_names_are_masked_where_the_test_has_them_too() -> None:
    one, other = "Make a new folder called bijapi.", "Make a new folder called zork."
    assert template(one) != template(other)
    assert template(one, {"bijapi", "make"}) == template(other, {"zork"})
    assert template("Run it.") is None
