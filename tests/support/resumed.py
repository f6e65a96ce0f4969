"""A run that ended, and is continued without a server."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import read_lines
from tests.support.recorded_run import FakeServer, recorded_run

TASKS = ("count-1", "count-2", "create-1", "create-2")


class Again:
    """Processes of one run, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "logs" / "run"
        self.tasks = folder / "tasks"
        for name in TASKS:
            shutil.copytree(Path("datasets/quickstart") / name, self.tasks / name)

    async def process(self, *arguments: str, server: type[FakeServer] = FakeServer) -> list[dict[str, Any]]:
        base = (
            "backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", f"tasks_dir={self.tasks}",
            "batch_size=2", "group_size=4", f"logs_dir={self.folder.parent}", "run_name=run",
        )  # fmt: skip
        return [json.loads(event) for event in await recorded_run([*base, *arguments], server)]

    def steps(self) -> list[int]:
        return [row["global_step"] for row in read_lines(self.folder / "metrics.jsonl")]


@pytest.fixture
def again(tmp_path: Path) -> Again:
    return Again(tmp_path)


def of(kind: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == kind]
