"""Families by names: pairs and series, a user's pattern."""

from pathlib import Path

import pytest

from harbortrainer.errors import UserError
from harbortrainer.tasks.identity import SAME_NAME
from harbortrainer.tasks.sources import name_families, with_families
from harbortrainer.tasks.split import families_note, overlaps, split_tasks
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import identify
from tests.support.task_folder import write_task


def test_names_in_series_share_a_family_where_most_have_one() -> None:
    pairs = [f"{topic}{end}" for topic in "abcdefgh" for end in ("_easy", "_hard")]
    names = [*pairs, "grep-v1", "grep-v2", "find_1_medium", "find_2_medium", "alone"]
    found = name_families(names, None)
    assert found == {name: name[0] for name in pairs} | {
        "grep-v1": "grep", "grep-v2": "grep", "find_1_medium": "find", "find_2_medium": "find",
    }  # fmt: skip
    assert name_families([*names, *(f"other{n}x" for n in range(30))], None) == {}
    assert name_families(names, "") == {}


@pytest.mark.parametrize("kinds", ["a", "abcdefghijkl"])
def test_numbered_tasks_are_no_families(kinds: str) -> None:
    assert name_families([f"{kind}-{n}" for kind in kinds for n in range(20)], None) == {}


def test_a_pattern_names_families() -> None:
    assert name_families(["a-x-1", "b-x-2", "c"], r"-(x)-") == {"a-x-1": "x", "b-x-2": "x"}
    for wrong, said in (("(", "no regular expression"), ("a", "no group"), ("(zzz)", "matches none of 3 tasks")):
        with pytest.raises(UserError, match=rf"^family=.*: .*{said}"):
            name_families(["a-x-1", "b-x-2", "c"], wrong)


def corpus(folder: Path) -> list[Task]:
    """Pairs that have nothing in common but their names."""
    made = []
    for n in range(20):
        for level in ("hard", "medium"):
            word = f"{level} {n} " + " ".join(f"w{n}{level}{k}x" for k in range(9))
            given = {"instruction.md": f"{word}\n", "tests/test.sh": f"# {word}\ntest -e /{n}{level}\n"}
            path = write_task(
                folder / f"topic{chr(97 + n)}_{level}", dockerfile=f"FROM x\nRUN make {word}\n", files=given
            )
            made.append(Task(path.name, path, f"{n} {level}"))
    return made


def test_no_pair_is_split_unless_the_user_says_so(tmp_path: Path) -> None:
    tasks = corpus(tmp_path)
    train, held_out = split_tasks(with_families(tasks, None), 0.3, (), 0)
    assert len(held_out) == 12 and {task.family for task in train}.isdisjoint(task.family for task in held_out)
    (line,) = families_note([*train, *held_out], None)
    assert line.startswith("names come in series: 20 families, such as topica of topica_hard; each stays on one side")
    train, held_out = split_tasks(with_families(tasks, ""), 0.3, (), 0)
    assert {task.name[:6] for task in train} & {task.name[:6] for task in held_out}
    named = with_families(tasks, r"^(\w+)_")
    (found,) = overlaps([identify(named[0])], [identify(named[1])])
    assert found.reason == SAME_NAME and families_note(named, r"^(\w+)_") == []
