"""Conversations of others: Harbor's jobs, ShareGPT, calls, parquet; what is left out, and why."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harbortrainer.errors import UserError
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.solution import terminus_answer
from harbortrainer.sft.arguments import checked
from harbortrainer.sft.dataset import Dataset, load_dataset
from harbortrainer.sft_config import SftConfig
from tests.support.conversations import conversation, write_conversations, write_run
from tests.support.fakes import QWEN3, byte_tokenizer, chat_template
from tests.support.harbor_job import TOOL, terminus, with_tools, write_trial


def load(*data: object, **settings: Any) -> Dataset:
    template = ChatTemplate(byte_tokenizer(QWEN3), tool_format="hermes")
    return load_dataset(SftConfig(model_name="models/one", data=tuple(map(str, data)), **settings), template)


def ids(dataset: Dataset) -> list[list[tuple[list[int], list[bool]]]]:
    return [[(s.tokens_T.tolist(), s.mask_T.tolist()) for s in one.sequences_D] for one in dataset.train]


def answer(number: int, complete: bool = False) -> dict[str, Any]:
    commands = [{"keystrokes": f'echo "{number} ü"\n', "duration": 0.5}] * (number % 3)
    return {"analysis": f"at {number}", "plan": "go\nPlan: on", "commands": commands, "task_complete": complete}


def text(one: dict[str, Any] | str) -> str:
    return one if isinstance(one, str) else terminus_answer(*(one[key] for key in one))


def test_trials_of_a_job_have_the_ids_of_the_same_messages(tmp_path: Path) -> None:
    """Answers that Terminus-2 parsed, one that it could not, completions, trials of other agents with tools."""
    records = []
    for number in range(20):
        prompt, task = f"do {number}", f"org/task-{number % 7}"
        if number % 10 == 9:
            write_trial(tmp_path / "job", f"t-{number:03}", 1.0, with_tools(prompt, "ls", "a b", "done"), task)
            called = {"function": {"name": "bash", "arguments": '{"command": "ls"}'}}
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": "I look.", "tool_calls": [called]},
                {"role": "tool", "content": "a b"},
                {"role": "assistant", "content": "done"},
            ]
            records.append({"messages": messages, "task": task.partition("/")[2], "tools": [TOOL]})
            continue
        answers = [answer(number), "no JSON at all", answer(number + 1, complete=True)]
        write_trial(tmp_path / "job", f"t-{number:03}", 1.0, terminus(prompt, answers), task)
        messages = [{"role": "user", "content": prompt}]
        for place, one in enumerate(answers):
            messages += [{"role": "assistant", "content": text(one)}, {"role": "user", "content": f"screen {place}\n"}]
        records.append({"messages": messages, "task": task.partition("/")[2]})
    of_job = load(f"harbor:{tmp_path / 'job'}")
    of_file = load(write_conversations(tmp_path / "d.jsonl", records))
    assert len(of_job.train) == 20 and ids(of_job) == ids(of_file)
    assert [one.task for one in of_job.train] == [one.task for one in of_file.train]
    assert not of_job.notes and of_job.train[3].name == "job:t-003"
    assert of_job.record()["digests"] != of_file.record()["digests"], "the name of each is another"


def test_answers_are_taken_as_they_were_where_the_trajectory_has_them(tmp_path: Path) -> None:
    said = answer(2) | {"more": 1}
    write_trial(tmp_path / "job", "raw", 1.0, terminus("do it", [said], raw=True))
    chat, (one,) = chat_template(), load(f"harbor:{tmp_path / 'job'}").train
    (sequence,) = one.sequences_D
    assert chat.tokenizer.decode(sequence.tokens_T[sequence.mask_T].tolist()).startswith(json.dumps(said))


def test_a_line_says_which_trials_are_left_out_and_why(tmp_path: Path) -> None:
    job, plain = tmp_path / "job", terminus("do it", ["yes"])
    write_trial(job, "a", 1.0, plain)
    write_trial(job, "b", 0.5, plain)
    write_trial(job, "c", 0.0, plain)
    write_trial(job, "d", None, plain)
    write_trial(job, "e", 1.0, None)
    write_trial(job, "f", 1.0, terminus("do it", ["yes"], continued_trajectory_ref="trajectory.cont-1.json"))
    write_trial(job, "g", 1.0, plain, task="org/held")
    (job / "result.json").write_text('{"stats": {}}')  # the job's own
    run = write_run(tmp_path / "run", {"one": (1.0,)}, held_out=["held"])
    dataset = load(f"harbor:{job}", runs=(str(run),))
    assert dataset.notes == (
        f"harbor:{job}: 6 of 7 conversations are left out: 2 reward below min_reward=1 (trial b), 1 not graded (the "
        "verifier left no reward) (trial d), 1 no agent/trajectory.json that can be read (trial e), 1 its history was "
        "summarised (trial f), 1 of a task that is held out (trial g)",
    )
    assert [one.name for one in dataset.train][:1] == ["job:a"]
    assert len(load(f"harbor:{job}", min_reward=0.5).train) == 3
    with pytest.raises(UserError, match=r"data=harbor:.*: trial a: reward below min_reward=2"):
        load(f"harbor:{job}", min_reward=2.0)
    with pytest.raises(UserError, match=r"holds no trial; name the folder of a job"):
        load(f"harbor:{tmp_path / 'nowhere'}")
    assert checked(["model_name=m", f"data=harbor:{job}", "min_reward=0.5"]).min_reward == 0.5


def test_sharegpt_is_read_as_the_same_messages(tmp_path: Path) -> None:
    plain = conversation("hello", "one", "two")
    names = {"user": "human", "assistant": "gpt"}
    shared = [{"from": names[m["role"]], "value": m["content"]} for m in plain["messages"]]
    one = load(write_conversations(tmp_path / "a.jsonl", [plain]))
    for number, record in enumerate(({"conversations": shared}, {"conversations": plain["messages"]})):
        assert ids(load(write_conversations(tmp_path / f"{number}.jsonl", [record]))) == ids(one)
    parts = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in plain["messages"]]
    assert ids(load(write_conversations(tmp_path / "parts.jsonl", [{"messages": parts}]))) == ids(one)


def test_rows_that_are_no_conversations_are_left_out(tmp_path: Path) -> None:
    image = [{"role": "user", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": "x"}]
    records = [
        conversation("a", "b"),
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": image},
        {"messages": image},
        {"text": "x"},
    ]
    file = write_conversations(tmp_path / "d.jsonl", records)
    dataset = load(file)
    assert dataset.notes == (
        f"{file}: 4 of 5 conversations are left out: 1 no message of the role assistant: nothing to train on (line 2), "
        '2 a message has parts that are no text (line 3), 1 must be an object with a list "messages" (line 5)',
    )
    assert [one.name for one in dataset.train] == ["d.jsonl:1"]


def test_a_call_that_cannot_be_written_leaves_its_conversation_out(tmp_path: Path) -> None:
    broken = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "bash", "arguments": "{"}}]}
    file = write_conversations(tmp_path / "d.jsonl", [{"messages": [{"role": "user", "content": "x"}, broken]}])
    with pytest.raises(UserError, match=r"line 1: a call is no"):
        load(file)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="the extra parquet is here")
def test_parquet_needs_its_extra(tmp_path: Path) -> None:
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"d.parquet: needs pyarrow; install this package with its extra parquet"):
        load(tmp_path / "d.parquet")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="the extra parquet")
@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_parquet_has_the_ids_of_the_same_lines(tmp_path: Path, column: str) -> None:
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    records = [conversation(f"p{n}", "one", "two", task=f"t{n % 3}") for n in range(20)]
    table = arrow.Table.from_pylist([{column: one["messages"], "task": one["task"]} for one in records])
    parquet.write_table(table, tmp_path / "d.parquet")
    found, lines = load(tmp_path / "d.parquet"), load(write_conversations(tmp_path / "d.jsonl", records))
    assert ids(found) == ids(lines) and [c.task for c in found.train] == [c.task for c in lines.train]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"broken.parquet: no parquet file"):
        load(tmp_path / "broken.parquet")
    assert np.array_equal(found.train[0].sequences_D[0].advantages_T, found.train[0].sequences_D[0].mask_T)
