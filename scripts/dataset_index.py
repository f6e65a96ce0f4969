"""Writes what is listed of the bundled tasks: digests, held-out names, and the table in datasets/README.md.

DIGESTS also lists terminal-easy, whose files scripts/easy/make_tasks.py writes on demand.

python -m scripts.dataset_index
"""

import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import markdown, replace_part
from harbortrainer.tasks.folders import digest
from scripts.easy import make_tasks as easy

DATASETS = Path(__file__).parents[1] / "datasets"
SETS = ("quickstart", "terminal-basics")
TERMINAL = "terminal-basics"
DIGESTS, HELD_OUT, README = "DIGESTS", "held_out.txt", "README.md"
LEVELS = ("easy", "medium", "hard")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the task.toml of a task of terminal-basics says of it."""

    name: str
    family: str
    level: str
    held_out: bool


def entries(folder: Path) -> list[Entry]:
    """The tasks of a folder, by name."""
    found = []
    for file in sorted(folder.glob("*/task.toml")):
        said = tomllib.loads(file.read_text())["metadata"]
        found.append(Entry(file.parent.name, said["family"], said["difficulty"], said["split"] == "held out"))
    return found


def digests(datasets: Path = DATASETS) -> str:
    """A line for each bundled task: the digest that a run records, and the task's path."""
    tasks = [file.parent for name in SETS for file in sorted((datasets / name).glob("*/task.toml"))]
    return "".join(f"{digest(task)}  {task.relative_to(datasets).as_posix()}\n" for task in tasks)


def easy_digests() -> str:
    """The lines of the tasks of terminal-easy, made for this in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, Path(easy.DIRECTORY).name)
        easy.write_tasks(made)
        return "".join(f"{digest(task)}  {made.name}/{task.name}\n" for task in sorted(made.glob("*/")))


def held_out(tasks: Sequence[Entry]) -> str:
    return "".join(f"{task.name}\n" for task in tasks if task.held_out)


def table(tasks: Sequence[Entry]) -> str:
    """Families with their number of tasks in each level; those held out come last."""
    families = sorted({(task.held_out, task.family) for task in tasks})
    rows = []
    for is_held_out, family in families:
        levels = Counter(task.level for task in tasks if task.family == family)
        rows.append([family, *_counts(levels), "held out" if is_held_out else "training"])
    rows.append(["all", *_counts(Counter(task.level for task in tasks)), ""])
    return markdown(("family", *LEVELS, "tasks", "split"), rows)


def _counts(levels: Counter[str]) -> list[str]:
    return [*(str(levels[level]) for level in LEVELS), str(levels.total())]


def write_index(datasets: Path = DATASETS) -> None:
    tasks = entries(datasets / TERMINAL)
    (datasets / DIGESTS).write_text(digests(datasets) + easy_digests())
    (datasets / TERMINAL / HELD_OUT).write_text(held_out(tasks))
    replace_part(datasets / README, TERMINAL, table(tasks))


if __name__ == "__main__":
    write_index()
