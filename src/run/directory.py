"""The run directory: where everything of one run lies, and under which names."""

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.errors import UserError
from src.run.files import replace_text


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run.

    config.json, effective.json (loss, optimizer and server as they really are), metrics.jsonl, checkpoints.jsonl,
    ledger.jsonl (what became of every trial);
    `rollouts/step_000012/` and `rollouts/eval_000010/` hold Harbor's
    trial folders (`harbor view RUN/rollouts --jobs`), `trajectories/` the same trials as training data.
    """

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def effective(self) -> Path:
        return self.path / "effective.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints.jsonl"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    def batch(self, kind: str, step: int) -> Path:
        """Folder of Harbor trials of one batch; kind is "step" or "eval"."""
        return self.rollouts / f"{kind}_{step:06d}"

    def trajectories(self, kind: str, step: int) -> Path:
        return self.path / "trajectories" / f"{kind}_{step:06d}"


def new_run_directory(logs_dir: str, name: str | None, label: str) -> RunDirectory:
    """Create the folder of a new run: `name`, or `label` and the time.

    Raises UserError when it cannot be written or is there already.
    """
    folder = name or f"{re.sub(r'[^A-Za-z0-9._-]+', '-', label).strip('-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = Path(logs_dir).expanduser().resolve() / folder
    try:
        path.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        raise UserError(
            f"run_name={folder}: {path} exists; continue it with resume={path} or choose another run_name"
        ) from None
    except OSError as error:
        raise UserError(f"logs_dir={logs_dir}: cannot write there ({error.strerror}); choose another folder") from None
    return RunDirectory(path)


def open_run_directory(path: str) -> RunDirectory:
    """The folder of an earlier run. Raises UserError when it is none."""
    run = RunDirectory(Path(path).expanduser().resolve())
    if not run.config.is_file():
        raise UserError(
            f"resume={path}: no run directory ({run.config} is missing); give the folder that holds config.json"
        )
    return run


def read_config(run: RunDirectory) -> dict[str, Any]:
    """The configuration that the run was started with. Raises UserError when the file is damaged."""
    try:
        return json.loads(run.config.read_text())
    except ValueError as error:
        raise UserError(f"resume={run.path}: config.json is damaged ({error}); restore it or start a new run") from None


def write_json(path: Path, value: Any) -> None:
    """Readable JSON, whole or not at all."""
    replace_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")
