"""terminal-easy: the same tasks on every machine, held-out words apart; demonstrations in Terminus-2's form."""

import json
from pathlib import Path

import pytest

from harbortrainer.harbor import without_litellm
from harbortrainer.tasks.folders import load_tasks
from harbortrainer.tasks.split import split_tasks
from harbortrainer.tasks.task import Task
from scripts.easy import demonstrations
from scripts.easy.make_tasks import held_out, make_cases, write_tasks
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


def test_more_training_tasks_leave_the_others_as_they_are() -> None:
    few, many = make_cases(), make_cases(3)
    assert {name: many[name] for name in few} == few
    assert len(many) == 3 * 96 + 48 and not any(map(held_out, many.keys() - few.keys()))


def test_a_share_is_drawn_by_whole_kinds_and_the_list_holds_out_new_names(folder: Path, tasks: list[Task]) -> None:
    train, unseen = split_tasks(tasks, 0.25, (), 0)
    kinds = {task.name.rpartition("-")[0] for task in unseen}
    assert len(unseen) == 36 and len(kinds) == 3
    assert not [task for task in train if task.name.rpartition("-")[0] in kinds]
    listed = (folder / "held_out.txt").read_text().split()
    train, unseen = split_tasks(tasks, 0.0, listed, 0, allow_family_overlap=True)
    assert (len(train), len(unseen)) == (96, 48)


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
