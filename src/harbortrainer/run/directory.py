"""The run directory: where everything of one run lies, and under which names."""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harbortrainer.durable.files import make_folder, read_json, sync_folder, write_json
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import BatchKind, batch_name


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run.

    run.json (RunIds), config.json as it was started and config_changes.jsonl since, tasks.json (their digests),
    effective.json (loss, optimizer and server as they really are), metrics.jsonl, checkpoints.jsonl, ledger.jsonl (what
    became of every trial), pending_row.json (of a step that was stopped before its evaluation), run.lock (held while a
    process runs it), curriculum.jsonl (each step's tasks, where `curriculum_band` chooses them);
    `rollouts/step_000012/` and `rollouts/eval_000010/` hold Harbor's trial folders (`harbor view RUN/rollouts --jobs`),
    `trajectories/` the same trials as training data, `log_ratios/` each step's trainer against its sampler,
    `conversations/` what was said. run.log has what libraries say.
    """

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def ids(self) -> Path:
        return self.path / "run.json"

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def config_changes(self) -> Path:
        return self.path / "config_changes.jsonl"

    @property
    def tasks(self) -> Path:
        return self.path / "tasks.json"

    @property
    def effective(self) -> Path:
        return self.path / "effective.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def pending_row(self) -> Path:
        return self.path / "pending_row.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints.jsonl"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def lock(self) -> Path:
        return self.path / "run.lock"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def resume(self) -> str:
        """The command that continues it."""
        return f"python -m src.train resume={self.path}"

    def batch(self, kind: BatchKind, step: int) -> Path:
        """Harbor's trial folders of one batch."""
        return self.rollouts / batch_name(kind, step)

    def trajectories(self, kind: BatchKind, step: int) -> Path:
        return self.path / "trajectories" / batch_name(kind, step)


@dataclass(frozen=True, slots=True)
class RunIds:
    """What identifies a run outside of its folder, whatever the folder's name: on Docker, and at wandb."""

    run_id: str
    wandb_id: str

    @classmethod
    def new(cls) -> "RunIds":
        run_id = secrets.token_hex(6)
        return cls(run_id, run_id)


def new_run_directory(logs_dir: str, name: str | None, label: str, files: Mapping[str, Any]) -> RunDirectory:
    """The folder of a new run, `name` or `label` and the time. It appears with these JSON files in it, or not at all.

    run.json is one more of them. Raises UserError when the folder cannot be written or exists already, DiskFault.
    """
    folder = name or f"{re.sub(r'[^A-Za-z0-9._-]+', '-', label).strip('-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = RunDirectory(Path(logs_dir).expanduser().resolve() / folder)
    growing = run.path.with_name(f".{folder}.{os.getpid()}")
    try:
        make_folder(run.path.parent)
        growing.mkdir()
    except OSError as error:
        raise UserError(f"logs_dir={logs_dir}: cannot write there ({error.strerror}); choose another folder") from None
    try:
        for file, value in files.items():
            write_json(growing / file, value)
        write_json(growing / run.ids.name, asdict(RunIds.new()))
        if run.path.exists():
            raise UserError(
                f"run_name={folder}: {run.path} exists; continue it with resume={run.path} or choose another run_name"
            )
        growing.rename(run.path)
        sync_folder(run.path.parent)
    finally:
        shutil.rmtree(growing, ignore_errors=True)
    return run


def find_run(logs_dir: str, name: str) -> RunDirectory | None:
    """The run of that name, None when there is none. Raises UserError for something else of that name."""
    run = RunDirectory(Path(logs_dir).expanduser().resolve() / name)
    if not run.path.exists():
        return None
    if not run.config.is_file():
        raise UserError(
            f"run_name={name}: {run.path} exists and is no run ({run.config.name} is missing); choose another run_name"
        )
    return run


def open_run_directory(path: str) -> RunDirectory:
    """The folder of an earlier run. Raises UserError when it is none."""
    run = RunDirectory(Path(path).expanduser().resolve())
    if not run.config.is_file():
        raise UserError(
            f"resume={path}: no run directory ({run.config} is missing); give the folder that holds config.json"
        )
    return run


def run_ids(run: RunDirectory) -> RunIds:
    """The run's own. A folder of an earlier version gets them now, and keeps the name that it has at wandb.

    Raises UserError when run.json is damaged.
    """
    if run.ids.exists():
        return RunIds(**read_json(run.ids))
    ids = RunIds.new()
    if (run.path / "wandb").is_dir():
        ids = replace(ids, wandb_id=run.name[:64])
    write_json(run.ids, asdict(ids))
    return ids


@contextlib.contextmanager
def held(run: RunDirectory) -> Iterator[None]:
    """Within the block no other process runs it; the system lets go when this one dies. Raises UserError."""
    with run.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(
                f"resume={run.path}: process {file.read().strip() or '?'} is running it; stop that one first"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def read_config(run: RunDirectory) -> dict[str, Any]:
    """The configuration that the run was started with. Raises UserError when the file is damaged."""
    return read_json(run.config)
