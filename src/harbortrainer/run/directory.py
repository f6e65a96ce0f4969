"""The run directory: paths of a run's files, its creation, its ids and its lock."""

import contextlib
import errno
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

from harbortrainer.commands import PLAN_FILE, continuing
from harbortrainer.durable.files import make_folder, read_json, sync_folder, write_json
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import BatchKind, batch_name

DATASET_FILE = "conversations.json"  # of a fine-tuning run: what it was trained on


class _Entry:
    """The path of one file or folder of a RunDirectory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunDirectory", _: object = None) -> Path:
        return run.path / self._name


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run.

    Besides the entries below: `trajectories/` holds the trials as training data, `log_ratios/` each step's trainer
    against its sampler, `conversations/` messages with rewards, run.log the log lines of libraries.
    """

    path: Path
    ids = _Entry("run.json")  # RunIds
    config = _Entry("config.json")  # as the run was started
    config_changes = _Entry("config_changes.jsonl")  # since then
    effective = _Entry("effective.json")  # loss, optimizer and server as they really are
    metrics = _Entry("metrics.jsonl")
    pending_row = _Entry("pending_row.json")  # metrics of a step that was stopped before its evaluation
    checkpoints = _Entry("checkpoints.jsonl")
    ledger = _Entry("ledger.jsonl")  # what became of every trial
    lock = _Entry("run.lock")  # held while a process runs the run
    rollouts = _Entry("rollouts")  # the trials' folders by batch

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def resume(self) -> str:
        """The command that continues the run."""
        return continuing(self.path)

    def batch(self, kind: BatchKind, step: int) -> Path:
        """Return the trials' folders of one batch."""
        return self.rollouts / batch_name(kind, step)

    def trajectories(self, kind: BatchKind, step: int) -> Path:
        return self.path / "trajectories" / batch_name(kind, step)


@dataclass(frozen=True, slots=True)
class RunIds:
    """Names a run in labels and at wandb, independent of its folder's name."""

    run_id: str
    wandb_id: str

    @classmethod
    def new(cls) -> "RunIds":
        run_id = secrets.token_hex(6)
        return cls(run_id, run_id)


def new_run_directory(logs_dir: str, name: str | None, label: str, files: Mapping[str, Any]) -> RunDirectory:
    """Create the folder of a new run: `name`, or `label` and the time. It appears with all `files` and run.json.

    Raises UserError when the folder cannot be written or exists already, DiskFault.
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
        while not _renamed(growing, run.path):
            if name is not None:
                raise UserError(
                    f"run_name={folder}: {run.path} exists; continue it with resume={run.path} or choose another "
                    "run_name"
                )
            run = RunDirectory(run.path.with_name(f"{folder}-{secrets.token_hex(2)}"))  # another began in this second
        sync_folder(run.path.parent)
    finally:
        shutil.rmtree(growing, ignore_errors=True)
    return run


def _renamed(growing: Path, path: Path) -> bool:
    """Whether the folder has the name now; False = another one has it."""
    if path.exists():
        return False
    try:
        growing.rename(path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    return True


def find_run(logs_dir: str, name: str) -> RunDirectory | None:
    """Return the run of that name, or None. Raises UserError when the folder holds something else."""
    run = RunDirectory(Path(logs_dir).expanduser().resolve() / name)
    if not os.path.exists(run.path):  # also where the name is too long for a file
        return None
    if not run.config.is_file():
        raise UserError(
            f"run_name={name}: {run.path} exists and is no run ({run.config.name} is missing); choose another run_name"
        )
    return run


def open_run_directory(path: str, field: str = "resume=") -> RunDirectory:
    """Return the folder of an earlier run. Raises UserError, which begins with `field` and `path`, when it is none."""
    run = RunDirectory(Path(path).expanduser().resolve())
    if not run.config.is_file():
        raise UserError(
            f"{field}{path}: no run directory ({run.config} is missing); give the folder that holds config.json"
        )
    return run


def base_model(run: RunDirectory) -> str:
    """Get the model whose tokens the trials are made of: of an evaluation without `model_name` that of its policies."""
    if name := read_json(run.config).get("model_name"):
        return name
    plan = read_json(run.path / PLAN_FILE) if (run.path / PLAN_FILE).is_file() else {}
    return next((one["model_name"] for one in plan.get("subjects", ()) if one["model_name"]), "")


def run_ids(run: RunDirectory) -> RunIds:
    """Read the run's ids. A folder of an earlier version gets them now, and keeps the name that it has at wandb.

    Raises UserError when run.json is damaged.
    """
    if run.ids.exists():
        found = read_json(run.ids, "run_id", "wandb_id")
        return RunIds(found["run_id"], found["wandb_id"])
    ids = RunIds.new()
    if (run.path / "wandb").is_dir():
        ids = replace(ids, wandb_id=run.name[:64])
    write_json(run.ids, asdict(ids))
    return ids


@contextlib.contextmanager
def held(run: RunDirectory) -> Iterator[None]:
    """Lock the run for this process, whose death frees the lock.

    Raises UserError when another process holds it, or the folder cannot be written.
    """
    try:
        opened = run.lock.open("a+")
    except OSError as error:
        raise UserError(
            f"resume={run.path}: {run.lock.name} cannot be written ({error.strerror}); continue the run as the user "
            "who started it"
        ) from None
    with opened as file:
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
