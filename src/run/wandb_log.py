"""The run at Weights & Biases: each row of metrics.jsonl once, however often the run was stopped and went on."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from src.run.directory import RunDirectory

# wandb's offline file is a LevelDB log (github.com/google/leveldb, doc/log_format.md) behind a header of its own.
_MARK, _HEADER, _BLOCK, _RECORD_HEAD = b":W&B", 7, 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4


class WandbLog:
    """`last_step`: the last global_step that wandb has already, -1 = none. Rows up to there are not sent again."""

    def __init__(self, run: Any, last_step: int) -> None:
        self.last_step = last_step
        self._run = run

    def log(self, row: dict[str, Any]) -> None:
        """wandb's own step is the global_step: parts of a run that were logged offline are merged by it."""
        if row["global_step"] > self.last_step:
            self.last_step = row["global_step"]
            self._run.log(row, step=self.last_step)

    def finish(self, exit_code: int | None = None) -> None:
        self._run.finish(exit_code=exit_code)


def start_wandb(run: RunDirectory, project: str | None, name: str | None, config: dict[str, Any]) -> WandbLog | None:
    """A wandb run, the same one whenever this run directory goes on; offline without a key; None without a project."""
    if project is None:
        return None
    import wandb

    has_key = bool(os.environ.get("WANDB_API_KEY")) or _netrc_has_key()
    mode = os.environ.get("WANDB_MODE") or ("online" if has_key else "offline")
    identity = run.name[:64]
    before = last_offline_step(run.path / "wandb", identity)
    wandb_run = wandb.init(
        project=project,
        name=name or run.name,
        id=identity,
        resume="allow",
        dir=str(run.path),
        config=config,
        mode=mode,  # pyright: ignore[reportArgumentType]
        settings=wandb.Settings(console="off"),
    )
    wandb_run.define_metric("global_step")
    wandb_run.define_metric("*", step_metric="global_step")
    return WandbLog(wandb_run, before if wandb_run.offline else wandb_run.starting_step - 1)


def last_offline_step(folder: Path, identity: str) -> int:
    """Highest global_step in the offline files of a run, -1 when there is none."""
    files = folder.glob(f"offline-run-*-{identity}/run-{identity}.wandb")
    return max((step for file in files for step in offline_steps(file)), default=-1)


def offline_steps(file: Path) -> Iterator[int]:
    """The global_step of each row in one of wandb's offline files, in order."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    for content in _records(file.read_bytes()):
        record = Record.FromString(content)
        for item in record.history.item:
            if "global_step" in (item.key, *item.nested_key):
                yield int(item.value_json)


def _records(data: bytes) -> Iterator[bytes]:
    """Payloads of the log; it ends where a process was killed while it wrote."""
    at, parts = _HEADER if data.startswith(_MARK) else len(data), b""
    while at + _RECORD_HEAD <= len(data):
        if _BLOCK - at % _BLOCK < _RECORD_HEAD:  # too little left of a block for a record is padding
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += _RECORD_HEAD
        if not _FULL <= kind <= _LAST or at + length > len(data):
            return
        parts = data[at : at + length] if kind in (_FULL, _FIRST) else parts + data[at : at + length]
        at += length
        if kind in (_FULL, _LAST):
            yield parts


def _netrc_has_key() -> bool:
    netrc = Path.home() / ".netrc"
    return netrc.is_file() and "api.wandb.ai" in netrc.read_text(errors="replace")
