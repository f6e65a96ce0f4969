"""Values of settings that fit a machine without a server, and the files that they name."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from harbortrainer.config import Config
from tests.conftest import ROOT

BASE = (
    "backend=skyrl-tx",
    "skyrl_tx_url=http://here:1",
    "model_name=models/one",
    "tasks_dir=TASKS",
    "batch_size=2",
    "group_size=2",
    "logs_dir=LOGS",
    "run_name=run",
)
TASKS = ("count-1", "create-1")  # one step: most settings show in it
MORE = ("count-1", "count-2", "create-1", "create-2")


def copy_tasks(folder: Path, names: tuple[str, ...]) -> str:
    for name in names:
        shutil.copytree(Path("datasets/quickstart") / name, folder / name)
    return str(folder)


def write_prices(file: Path) -> str:
    """A server of which an hour costs a thousand million USD."""
    file.write_text(json.dumps({"usd_per_hour": 1e9}))
    return str(file)


OWN = ROOT / "tests" / "support" / "own_functions.py"
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed: uv pip install torch")


def config(*, tasks_dir: str = "d", **changes) -> Config:
    return Config(model_name="m", tasks_dir=tasks_dir, **changes)
