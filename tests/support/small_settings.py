"""Values of settings that fit a machine without a server, and the files that they name."""

import importlib.util
import json
import shutil
import typing
from collections.abc import Sequence
from pathlib import Path

import chz
import pytest

from harbortrainer.config import Config
from harbortrainer.setting import settings, shown
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


def another(kind: type, name: str, given: Sequence[str] = ()) -> str:
    """A value of a setting that it has neither by default nor in `given`, arguments."""
    base = dict(argument.split("=", 1) for argument in given)
    choices = typing.get_args(chz.chz_fields(kind)[name].final_type)
    usual = settings(kind)[name].default
    if choices and all(isinstance(choice, str) for choice in choices):
        return next(choice for choice in choices if choice != base.get(name, usual))
    if isinstance(usual, bool):
        return shown(not usual)
    assert isinstance(usual, int | float), f"{name}: no value can be made up; add it to SPECIAL"
    return shown(type(usual)(base.get(name, usual)) + 1) if isinstance(usual, int) else str(usual / 2 or 1.0)


OWN = ROOT / "tests" / "support" / "own_functions.py"
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed: uv pip install torch")


def config(*, tasks_dir: str = "d", **changes) -> Config:
    return Config(model_name="m", tasks_dir=tasks_dir, **changes)
