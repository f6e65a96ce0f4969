"""The quickstart's tasks on disk are what the generator writes, and are split as they say."""

from pathlib import Path

from harbortrainer.tasks.folders import load_tasks
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.make_tasks import HELD_OUT_LIST, held_out, make_cases, write_tasks

TASKS = Path("datasets/quickstart")


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_committed_tasks_are_those_of_the_seed(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    assert contents(tmp_path) == contents(TASKS)


def test_a_third_of_every_kind_is_held_out() -> None:
    names = set((TASKS / HELD_OUT_LIST).read_text().split())
    cases = make_cases()
    assert len(cases) == 48
    assert names == {name for name in cases if held_out(name)}
    assert {cases[name].kind.name for name in names} == {kind.name for kind in KINDS}
    assert len(names) * 3 == len(cases)


def test_held_out_names_and_contents_are_fresh() -> None:
    cases = make_cases()
    shown = {name: case.words - {"txt", "md", "log", "csv", "sh", "echo"} for name, case in cases.items()}
    training = set().union(*(words for name, words in shown.items() if not held_out(name)))
    unseen = set().union(*(words for name, words in shown.items() if held_out(name)))
    assert unseen
    assert not {word for word in training & unseen if not word.isdigit()}


def test_the_trainer_can_load_them() -> None:
    assert {task.name for task in load_tasks(str(TASKS))} == set(make_cases())
