"""`evaluate policy=FILE` with real Docker: an endpoint that knows the solutions and is faulty a third of the time."""

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.evaluation.oracle import find_scripts
from harbortrainer.learning.trajectory import Outcome
from harbortrainer.policy.solution import typed_answers
from harbortrainer.run.trajectories import read_batch
from tests.conftest import MODEL, ROOT
from tests.support.chat_server import CUT, DRIPS, HANG, ChatServer, Reply, says

pytestmark = pytest.mark.usefixtures("docker_ready")
TASKS = ROOT / "datasets" / "quickstart"
NAMES = ("count-1", "create-1")
FAULTS: list[Reply] = [HANG, (429, "slow down"), CUT, (200, "<html>"), (200, {"choices": []}), (502, "bad"), DRIPS]


class Teacher:
    """Answers with the solution of the task whose instruction is in the prompt; faults come by chance."""

    def __init__(self, share: float) -> None:
        self._share, self._chance = share, random.Random(1)
        self._answers = {
            (TASKS / name / "instruction.md").read_text().strip(): typed_answers(find_scripts(TASKS / name)[0])
            for name in NAMES
        }

    def __call__(self, body: dict[str, Any]) -> Reply:
        messages = body["messages"]
        found = [own for text, own in self._answers.items() if text in messages[0]["content"]]
        if self._chance.random() < self._share:
            return self._chance.choice(FAULTS)
        if not found:  # the first small request
            return says("yes")
        turn = sum(message["role"] == "assistant" for message in messages)
        return says(found[0][min(turn, len(found[0]) - 1)], prompt_tokens=1000, completion_tokens=100)


@contextmanager
def served(teacher: Teacher) -> Iterator[ChatServer]:
    """In a thread: the command has an event loop of its own."""
    server, loop = ChatServer(teacher), asyncio.new_event_loop()
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def words(url: str, folder: Path, *more: str) -> list[str]:
    about = {"url": url, "model": "teacher", "answer_sec": 1.0, "usd_per_million": {"prompt": 1.0, "sampled": 10.0}}
    (folder / "teacher.json").write_text(json.dumps(about))
    return [
        "evaluate", f"policy={folder / 'teacher.json'}", f"model_name={MODEL}", f"tasks_dir={TASKS}",
        f"tasks_include={','.join(NAMES)}", "trials=2", f"out={folder / 'out'}", *more,
    ]  # fmt: skip


def test_a_faulty_endpoint_costs_no_trial_its_grade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with served(Teacher(0.3)) as server:
        assert main(words(server.url, tmp_path, "max_usd=0.006")) == 2, "capped"
        assert "max_usd=0.006: " in capsys.readouterr().err
        first = read_lines(out / "requests_0.jsonl")
        assert main(words(server.url, tmp_path, "max_usd=100", "k=1,2")) == 0
    (policy,) = json.loads((out / "evaluation.json").read_text())["policies"]
    assert {task["name"]: task["rewards"] for task in policy["per_task"]} == {name: [1.0, 1.0] for name in NAMES}
    assert policy["reward"]["mean"] == 1.0 and set(policy["pass_at"]) == {"1", "2"} and policy["ungraded"] == 0
    requests = read_lines(out / "requests_0.jsonl")
    assert requests[: len(first)] == first, "what the first process has spent is kept"
    assert len(requests) == len(server.requests)
    failed = [one for one in requests if one["how"]]
    assert len(failed) > 3 and sum(one["prompt_tokens"] for one in requests if not one["how"]) >= 1000 * 4 * 3
    trials = read_batch(out / "trajectories" / "eval_000000")
    assert {trial.outcome for trial in trials.values()} == {Outcome.COMPLETED}

    sft = ["sft", f"runs={out}", "backend=skyrl-tx", "skyrl_tx_url=http://localhost:9", f"model_name={MODEL}"]
    assert main([*sft, "batch_size=2", "n_epochs=1", f"logs_dir={tmp_path}", "--dry-run"]) == 0
    assert "4 conversations" in capsys.readouterr().out
