"""terminal-easy: the same tasks on every machine, held-out words apart; demonstrations in Terminus-2's form."""

import json
from pathlib import Path

import pytest

from harbortrainer.harbor import without_litellm
from harbortrainer.tasks.folders import load_tasks
from harbortrainer.tasks.split import families, split_tasks
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import identify
from scripts.easy import demonstrations, make_tasks
from scripts.easy.kinds import EASY_KINDS
from scripts.easy.make_tasks import HELD_OUT, TRAINING, held_out, make_cases, write_tasks
from scripts.easy.words import pools

with without_litellm():
    from harbortrainer.venues.harbor.terminus import AnswerParser

COUNT = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("easy")
    write_tasks(made)
    return made


@pytest.fixture(scope="module")
def tasks(folder: Path) -> list[Task]:
    return load_tasks(str(folder))


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[dict[str, str]]]]:
    out = tmp_path_factory.mktemp("talks") / "new" / "talks.jsonl"
    demonstrations.write(out, COUNT, 3, 0.35)
    return [json.loads(line) for line in out.read_text().splitlines()]


def words_of(text: str) -> set[str]:
    return set("".join(letter if letter.isalpha() else " " for letter in text).split())


def test_pools_share_no_word_and_no_word_contains_another() -> None:
    training, unseen, shown = pools()
    words = [*training, *unseen, *shown]
    assert len(set(words)) == len(words)
    assert min(map(len, (training, unseen, shown))) > 300
    assert not [(a, b) for a in words for b in words if a != b and a in b]


def test_names_and_contents_come_from_the_pool_of_their_side() -> None:
    known = {True: set(pools()[1]), False: set(pools()[0])}
    for name, case in make_cases().items():
        used = case.words - {"echo", "txt", "md", "log", "csv", "sh"}
        assert used and used <= known[held_out(name)], name


def test_every_kind_has_its_tasks_and_a_third_is_held_out(folder: Path, tasks: list[Task]) -> None:
    names = {f"{kind.name}-{number}" for kind in EASY_KINDS for number in range(1, TRAINING + HELD_OUT + 1)}
    assert {task.name for task in tasks} == names and len(names) == 144
    listed = (folder / "held_out.txt").read_text().split()
    assert set(listed) == set(filter(held_out, names)) and len(listed) == 48


def test_more_training_tasks_leave_the_others_as_they_are() -> None:
    few, many = make_cases(), make_cases(3)
    assert {name: many[name] for name in few} == few
    assert len(many) == 3 * 96 + 48 and not any(map(held_out, many.keys() - few.keys()))


def test_every_held_out_wording_is_also_trained_on() -> None:
    def wordings(which: bool) -> set[str]:
        cases = [case for name, case in make_cases().items() if held_out(name) is which]
        return {
            wording for case in cases for wording in case.kind.wordings
            if case.instruction.startswith(wording.format(**case.values))
        }  # fmt: skip

    assert wordings(True) == wordings(False)


def test_few_environments_none_of_both_sides(folder: Path) -> None:
    seen: dict[str, set[bool]] = {}
    for name in make_cases():
        seen.setdefault((folder / name / "environment/Dockerfile").read_text(), set()).add(held_out(name))
    assert len(seen) == 6 and all(len(sides) == 1 for sides in seen.values())


def test_a_family_is_a_kind(tasks: list[Task]) -> None:
    family = families([identify(task) for task in tasks])
    assert len(set(family.values())) == len(EASY_KINDS)
    assert all(first.rpartition("-")[0] == name.rpartition("-")[0] for name, first in family.items())


def test_a_share_is_drawn_by_whole_kinds_and_the_list_holds_out_new_names(folder: Path, tasks: list[Task]) -> None:
    train, unseen = split_tasks(tasks, 0.25, (), 0)
    kinds = {task.name.rpartition("-")[0] for task in unseen}
    assert len(unseen) == 36 and len(kinds) == 3
    assert not [task for task in train if task.name.rpartition("-")[0] in kinds]
    listed = (folder / "held_out.txt").read_text().split()
    train, unseen = split_tasks(tasks, 0.0, listed, 0, allow_family_overlap=True)
    assert (len(train), len(unseen)) == (96, 48)


def test_no_command_that_the_author_takes_wrongly_solves_its_task() -> None:
    for case in make_cases().values():
        assert case.right not in [wrong.typed for wrong in case.wrong]
        assert len({wrong.typed for wrong in case.wrong}) == 3


def test_the_author_is_careless_and_writes_what_the_agent_reads(talks: list[dict[str, list[dict[str, str]]]]) -> None:
    training, unseen, shown = pools()
    parser, typed = AnswerParser(), 0
    for talk in talks:
        said = [message["content"] for message in talk["messages"] if message["role"] == "user"]
        answered = [message["content"] for message in talk["messages"] if message["role"] == "assistant"]
        assert [message["role"] for message in talk["messages"]] == ["user", "assistant"] * len(said)
        parsed = [parser.parse_response(answer) for answer in answered]
        assert not any(one.error or one.warning for one in parsed)
        assert [one.is_task_complete for one in parsed[-2:]] == [True, True]
        assert "Are you sure" in said[-1] and "Are you sure" not in said[-2]
        typed += sum(len(one.commands) for one in parsed)
        task = said[0].partition("Task Description:")[2].partition("Current terminal state")[0]
        used = words_of(task + parsed[0].commands[0].keystrokes)
        assert used & set(shown) and not used & {*training, *unseen}
    assert typed == len(talks)
    assert {frozenset(talk) for talk in talks} == {frozenset({"messages"})}


def test_the_share_of_right_commands_is_the_one_asked_for() -> None:
    for share in (0.0, 0.35, 1.0):
        found = list(demonstrations.conversations(COUNT, 5, share))
        right = sum(f'"{case.right}\\n"' in messages[1]["content"] for case, messages in found)
        assert abs(right / COUNT - share) < 0.1 and (0 < share < 1 or right == share * COUNT)


def test_demonstrations_are_those_of_their_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        demonstrations.write(tmp_path / name, 24, seed, 0.35)
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() != (tmp_path / "c").read_text()


def test_help_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program", "--help"])
    for program in (lambda: demonstrations.from_command_line("demonstrations", demonstrations.write), make_tasks.main):
        with pytest.raises(SystemExit, match="0"):
            program()
    assert not list(tmp_path.iterdir())
