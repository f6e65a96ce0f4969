"""What wandb's own offline files of a run hold: which steps it has already."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# wandb's offline file is a LevelDB log (github.com/google/leveldb, doc/log_format.md) behind a header of its own.
_MARK, _HEADER, _BLOCK, _RECORD_HEAD = b":W&B", 7, 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4


def offline_files(folder: Path, wandb_id: str) -> list[Path]:
    """Of a run, in order of time; one a process."""
    return sorted(folder.glob(f"offline-run-*-{wandb_id}/run-{wandb_id}.wandb"))


def last_offline_step(folder: Path, wandb_id: str) -> int:
    """Highest global_step in the offline files of a run, -1 when there is none."""
    return max((step for file in offline_files(folder, wandb_id) for step in offline_steps(file)), default=-1)


def offline_steps(file: Path) -> Iterator[int]:
    """The global_step of each row in one of wandb's offline files, in order."""
    for record in records(file):
        for item in record.history.item:
            if "global_step" in (item.key, *item.nested_key):
                yield int(item.value_json)


def records(file: Path) -> Iterator[Any]:
    """wandb's records in one of its files, up to where a process was killed while it wrote."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    for content in _payloads(file.read_bytes()):
        yield Record.FromString(content)


def _payloads(data: bytes) -> Iterator[bytes]:
    """Of the log."""
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
