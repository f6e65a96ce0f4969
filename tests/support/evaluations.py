"""Evaluations with a policy that knows every answer, and their results."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.cli.main import main, run_command
from harbortrainer.evaluation import session
from harbortrainer.evaluation.arguments import parse
from harbortrainer.run.checkpoints import CheckpointLog, PolicyIdentity
from harbortrainer.tasks.folders import load_tasks
from harbortrainer.tasks.split import SPLIT_FILE, split_record
from tests.support.fakes import chat_template
from tests.support.recorded_run import Answer, FakeServer, Recorder, fake_outside

TASKS = ("count-1", "count-2", "create-1", "create-2")


def copy_tasks(folder: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(Path("datasets/quickstart") / name, folder / name)
    return folder


class KnowsAll(FakeServer):
    """Restores any checkpoint."""

    def get_weights_info_by_tinker_path(self, path: str) -> Answer[Any]:
        return Answer(SimpleNamespace(base_model="models/one", lora_rank=16))

    def create_training_client_from_state_with_optimizer(self, path: str) -> Answer[FakeServer]:
        self._note("restore", path=path)
        return Answer(self)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    return Recorder()


@pytest.fixture
def run(recorder: Recorder, tmp_path: Path) -> Callable[..., int]:
    tasks = copy_tasks(tmp_path / "tasks", *TASKS)

    def command(*arguments: str, server: type[FakeServer] = KnowsAll) -> int:
        recorder.events.clear()
        given = {name.partition("=")[0] for name in arguments}
        usual = {"model_name": "models/one", "tasks_dir": str(tasks), "out": str(tmp_path / "out"), "trials": "2"}
        usual |= {"backend": "skyrl-tx", "skyrl_tx_url": "http://here:1"}
        if arguments and arguments[0] in ("show", "export"):
            return main(["evaluate", *arguments])
        outside = fake_outside(recorder, server(recorder))
        fields = [*arguments, *(f"{k}={v}" for k, v in usual.items() if k not in given)]
        return run_command(lambda: session.evaluate(parse(fields), outside))

    return command


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text())


def make_run(folder: Path, trained_on: Path, *steps: int, renderer: Any = None) -> Path:
    """A training run's directory with checkpoints."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_name": "models/one"}))
    record = split_record(load_tasks(str(trained_on)), [], False)
    (folder / SPLIT_FILE).write_text(json.dumps(record))
    renderer = renderer or chat_template().renderer
    policy = PolicyIdentity("models/one", 16, renderer.name, renderer.thinking)

    for step in steps:
        with (folder / "checkpoints.jsonl").open("a") as file:
            file.write(json.dumps(asdict(policy.checkpoint(step, f"tinker://m/weights/s{step}"))) + "\n")
    assert len(CheckpointLog(folder / "checkpoints.jsonl").records) == len(steps)
    return folder
