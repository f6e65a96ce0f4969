"""Tasks that are close to another set's: words in a row, relations, what a form of texts is not; who says it."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from harbortrainer.cli.main import main
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.evaluation.arguments import parse
from harbortrainer.evaluation.session import make_plan as evaluation_plan
from harbortrainer.sft.dataset import load_dataset
from harbortrainer.sft_config import SftConfig
from harbortrainer.tasks.close import WORDS, Known, close, close_note, grams_in
from harbortrainer.tasks.folders import load_tasks
from harbortrainer.tasks.sources import SOURCES_FILE
from harbortrainer.tasks.task import Task
from harbortrainer.training.plan import make_plan, start_directory
from tests.support.conversations import conversation, write_conversations
from tests.support.evaluations import copy_tasks
from tests.support.fakes import chat_template

FIRST = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron"  # 15 words
OTHER = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"


def write_task(folder: Path, name: str, instruction: str, test: str = "", data: str = "") -> None:
    task = folder / name
    for part in ("environment", "tests"):
        (task / part).mkdir(parents=True)
    (task / "task.toml").write_text('version = "1.0"\n')
    (task / "instruction.md").write_text(instruction)
    (task / "environment" / "Dockerfile").write_text("FROM debian:12\n")
    (task / "tests" / "test.sh").write_text(test or f"check {name}")
    if data:
        (task / "environment" / "data.txt").write_text(data)


def tasks_of(folder: Path) -> list[Task]:
    return load_tasks(str(folder))


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    write_task(tmp_path / "b", "wanted", f"Please do this. {FIRST}.", data=OTHER)
    write_task(tmp_path / "b", "plain", "Write the number 7 into a file of your own.")
    return tmp_path / "b"


def test_runs_of_thirteen_words_are_compared_without_case_and_punctuation() -> None:
    assert len(grams_in(FIRST)) == 3 and len(grams_in(" ".join(FIRST.split()[:12]))) == 0
    assert np.array_equal(grams_in(FIRST), grams_in(f"«{FIRST.upper().replace(' ', ', ')}»"))
    assert not np.isin(grams_in(" ".join(reversed(FIRST.split()))), grams_in(FIRST)).any(), "their order counts"
    assert WORDS == 13


def test_each_part_of_a_task_is_named(tmp_path: Path, benchmark: Path) -> None:
    mine = tmp_path / "a"
    write_task(mine, "instructed", f"Reworded: {FIRST} and more.")
    write_task(mine, "tested", "Another job altogether for you.", test=f"# {OTHER}")
    write_task(mine, "filled", "Sort what you find in the folder, please.", data=f"x {OTHER} y")
    write_task(mine, "alike", "Write the number 8 into a file of your own.")
    write_task(mine, "innocent", "Count the lines of each file and print them.")
    found = {near.name: (near.other, near.why) for near in close(tasks_of(mine), tasks_of(benchmark))}
    assert found == {
        "instructed": ("wanted", "3 13-grams of its instruction"),
        "tested": ("wanted", "3 13-grams of its tests"),
        "filled": ("wanted", "3 13-grams of its files"),
        "alike": ("plain", "the same instruction template"),
    }


def test_a_form_that_families_share_is_no_content(tmp_path: Path, benchmark: Path) -> None:
    own = ("stack the crates by weight", "count the lines twice", "rename each picture", "draw a map of the house")
    for number, text in enumerate(own):
        write_task(tmp_path / "a", f"a{number}", f"Please {text}.", test=f"# {number} {FIRST}")
    assert close(tasks_of(tmp_path / "a"), tasks_of(benchmark)) == [], "tests of three families"
    for number, text in enumerate(own[:2]):
        write_task(tmp_path / "c", f"c{number}", f"Please {text}. {FIRST}")
    for number in range(5):
        write_task(tmp_path / "c", f"d{number}", f"{' '.join(OTHER.split()[number : number + 4])} in the end.")
    assert [near.name for near in close(tasks_of(tmp_path / "c"), tasks_of(benchmark))] == ["c0", "c1"]


def test_the_command_lists_them(tmp_path: Path, benchmark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(tmp_path / "a", "instructed", f"Reworded: {FIRST} and more.")
    assert main(["tasks", "close", str(tmp_path / "a"), str(benchmark), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"name": "instructed", "other": "wanted", "why": "3 13-grams of its instruction", "related": False}
    ]
    assert main(["tasks", "close", "datasets/quickstart", str(benchmark)]) == 0
    assert "0 of 48 tasks are close to one of 2" in capsys.readouterr().out
    assert main(["tasks", "close", str(benchmark)]) == 2


def test_the_bundled_tasks_are_not_close_to_each_other() -> None:
    quickstart, basics = (tasks_of(Path("datasets") / name) for name in ("quickstart", "terminal-basics"))
    assert close(quickstart, basics) == []


def test_a_run_says_it_of_its_held_out_tasks_and_an_evaluation_of_its_own(tmp_path: Path, benchmark: Path) -> None:
    mine = copy_tasks(tmp_path / "mine", "count-1", "create-1")
    write_task(mine, "instructed", f"Reworded: {FIRST} and more.")
    config = Config(
        model_name="m", tasks_dir=f"{mine},{benchmark}", eval_tasks=("wanted",), logs_dir=str(tmp_path / "logs")
    )
    for _ in range(2):  # the second time from what is kept
        plan = make_plan(config)
        line = "1 of 1 held-out tasks share 13 words in a row with training: wanted and instructed: 3 13-grams of its "
        assert plan.notes == (f"{line}instruction",)
    run = start_directory(make_plan(Config(model_name="m", tasks_dir=str(mine), logs_dir=str(tmp_path / "logs"))))
    one = {
        "step": 1,
        "path": "tinker://m/weights/1",
        "model_name": "m",
        "lora_rank": 8,
        "renderer": "r",
        "thinking": "",
    }
    run.checkpoints.write_text(json.dumps(one) + "\n")
    words = [f"checkpoint={run.path}", "model_name=m", f"tasks_dir={benchmark}"]
    (said,) = evaluation_plan(parse(words)).near
    assert said.startswith(f"{run.name}@1: 1 of 2 held-out tasks share 13 words") and "wanted and instructed" in said
    (run.path / SOURCES_FILE).unlink()
    assert evaluation_plan(parse(words)).near == []


def test_conversations_of_a_file_are_checked_against_held_out_tasks(tmp_path: Path, benchmark: Path) -> None:
    near = conversation(f"Do it: {FIRST.title()}!", "yes")
    records = [conversation("a", "b"), near, conversation("c", "d", task="plain")]
    file = write_conversations(tmp_path / "d.jsonl", records)
    config = SftConfig(model_name="m", data=(str(file),), held_out_dir=str(benchmark))
    dataset = load_dataset(config, chat_template())
    assert [one.name for one in dataset.train] == ["d.jsonl:1"]
    assert dataset.notes == (
        f"{file}: 2 of 3 conversations are left out: 1 shares 13 words in a row with the held-out task "
        "wanted (line 2), 1 of a task that is held out (line 3)",
    )


def test_held_out_tasks_that_cannot_be_read_are_refused_by_their_setting(tmp_path: Path) -> None:
    file = write_conversations(tmp_path / "d.jsonl", [conversation("a", "b")])
    config = SftConfig(model_name="m", data=(str(file),), held_out_dir=str(file))
    with pytest.raises(UserError, match=f"^held_out_dir={file}: {file} is not a folder"):
        load_dataset(config, chat_template())


def test_a_set_without_words_has_no_near_task() -> None:
    assert Known([]).task_of(FIRST) == "" and list(close_note([], [])) == []


def test_a_corpus_is_compared_in_the_time_of_its_own_words(tmp_path: Path) -> None:
    """What all held-out tasks have, millions of numbers, was sorted and hashed for each task: minutes for 3,594."""
    for number in range(40):
        write_task(tmp_path / "a", f"a{number}", f"{number} reworded: {FIRST} and more.")
    tasks, wanted = tasks_of(tmp_path / "a"), np.arange(2_000_000, dtype=np.uint64)
    began = time.process_time()
    assert Known(tasks, np.concatenate([wanted, grams_in(FIRST)])).nearest(grams_in(FIRST))
    assert time.process_time() - began < 0.3
