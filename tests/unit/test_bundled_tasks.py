"""The tasks of datasets/terminal-basics: complete, uniform, split by family, listed as they are."""

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from harbortrainer.docker.images.image import content_digest
from harbortrainer.tasks.folders import find_fault, load_tasks
from harbortrainer.tasks.split import families, overlaps
from harbortrainer.tasks.venue import identify
from scripts.dataset_index import DATASETS, LEVELS, TERMINAL, entries, write_index

FOLDER = DATASETS / TERMINAL
ENTRIES = entries(FOLDER)
NAMES = [entry.name for entry in ENTRIES]
SIZE = 40_000  # bytes of a task, at most
ADDRESSES = re.compile(r"apt-get|pip install|https?://(?!127\.0\.0\.1|localhost|x\.example|[a-z]+\.example)")


def text(name: str, path: str) -> str:
    return (FOLDER / name / path).read_text()


def test_as_many_as_promised() -> None:
    assert len(ENTRIES) >= 60
    assert len({entry.family for entry in ENTRIES}) >= 8
    assert {entry.level for entry in ENTRIES} == set(LEVELS)


def test_families_are_held_out_whole_and_each_side_has_every_level() -> None:
    sides = Counter((entry.family, entry.held_out) for entry in ENTRIES)
    assert len(sides) == len({entry.family for entry in ENTRIES})
    for side in (True, False):
        assert {entry.level for entry in ENTRIES if entry.held_out is side} == set(LEVELS)
    assert 0.15 < sum(entry.held_out for entry in ENTRIES) / len(ENTRIES) < 0.35


def test_nothing_held_out_is_related_to_training() -> None:
    tasks = {task.name: identify(task) for task in load_tasks(str(FOLDER))}
    train = [tasks[entry.name] for entry in ENTRIES if not entry.held_out]
    assert overlaps(train, [tasks[entry.name] for entry in ENTRIES if entry.held_out]) == []
    family = families(list(tasks.values()))
    assert len(set(family.values())) == len({entry.family for entry in ENTRIES})


def test_every_task_has_an_environment_of_its_own() -> None:
    assert len({content_digest(FOLDER / name / "environment") for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_complete(name: str) -> None:
    task = FOLDER / name
    entry = next(entry for entry in ENTRIES if entry.name == name)
    assert find_fault(task) is None
    assert name.startswith(f"{entry.family}-")
    settings = text(name, "task.toml")
    for line in (f'name = "harbortrainer/{name}"', f'category = "{entry.family}"', 'license = "Apache-2.0"'):
        assert line in settings.splitlines()
    assert text(name, "environment/Dockerfile").startswith("FROM harbortrainer/tools:bookworm\nWORKDIR /app")
    assert text(name, "tests/test.sh").startswith("#!/bin/bash\n. /tests/lib.sh\n")
    assert text(name, "tests/test.sh").splitlines()[-1] in ("finish", "finish partial")
    assert (task / "tests/test.sh").stat().st_mode & (task / "solution/solve.sh").stat().st_mode & 0o111
    assert "/app" in text(name, "instruction.md") or "/srv" in text(name, "instruction.md")


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_small_and_has_no_network(name: str) -> None:
    files = [file for file in (FOLDER / name).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < SIZE
    scripts = [file for file in files if file.suffix in (".sh", ".py") or file.name == "Dockerfile"]
    assert [file for file in scripts if ADDRESSES.search(file.read_text())] == []
    assert 'network_mode = "no-network"' in text(name, "task.toml").splitlines()


def test_all_tasks_share_the_helpers_of_their_tests() -> None:
    assert len({text(name, "tests/lib.sh") for name in NAMES}) == 1


def test_what_is_listed_is_what_is_there(tmp_path: Path) -> None:
    """Otherwise: python -m scripts.dataset_index"""
    copied = tmp_path / "datasets"
    shutil.copytree(DATASETS, copied, ignore=shutil.ignore_patterns("terminal-easy"))
    for name in (listed := ("DIGESTS", f"{TERMINAL}/held_out.txt")):
        (copied / name).unlink()
    write_index(copied)
    for name in (*listed, "README.md"):
        assert (copied / name).read_text() == (DATASETS / name).read_text(), name
