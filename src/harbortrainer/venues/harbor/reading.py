"""Reads new task directories: `python -m harbortrainer.venues.harbor.reading list|run FILE`, with one of them a line.

What is found is kept as facts, which commands and runs on thousands of tasks ask for.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from harbortrainer.durable.facts import read_on_all_cores, unchanging
from harbortrainer.tasks.folder_identity import identify_folder
from harbortrainer.tasks.folders import category, digest, find_fault, metadata
from harbortrainer.tasks.task import Task


def read_listed(tasks: Sequence[Path], many: int = 500) -> None:
    """Read what a list shows of tasks that were never read, on all cores where there are `many` tasks for each."""
    read_on_all_cores(tasks, (__name__, "list"), many)


def read_run(tasks: Sequence[Path], many: int = 500) -> None:
    """Read what a run needs to know before it begins, as `read_listed` does."""
    read_on_all_cores(tasks, (__name__, "run"), many)


def _read(task: Path, purpose: str) -> None:
    from harbortrainer.docker.checks.preflight import task_needs
    from harbortrainer.docker.images.inventory import names_of

    content, is_whole = digest(task), find_fault(task) is None
    if is_whole:
        names_of(task)
    if purpose == "list":
        metadata(task)
        identify_folder(Task(task.name, task, content))
        return
    category(task)
    if is_whole:
        task_needs(task, {})


if __name__ == "__main__":
    with unchanging():
        for line in Path(sys.argv[2]).read_text().splitlines():
            _read(Path(line), sys.argv[1])
