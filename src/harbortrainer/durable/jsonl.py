"""Append-only JSON lines that survive a kill: a torn last line is cut, any other damaged line is an error."""

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harbortrainer.durable.disk import disk_errors
from harbortrainer.durable.files import replace_text, sync_folder
from harbortrainer.errors import UserError

CHECKSUM = "crc"
_MARK = f', "{CHECKSUM}": '


def append_line(path: Path, record: dict[str, Any], *, durable: bool = True, checked: bool = False) -> None:
    """Append one record, whole or not at all; `durable`: fsynced, `checked`: with a checksum that is verified.

    Raises DiskFault.
    """
    text = json.dumps(record)
    if checked:
        text = f"{text[:-1]}{_MARK}{zlib.crc32(text.encode())}}}"
    with disk_errors(path):
        new = not path.exists()
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            _append(handle, f"{text}\n".encode(), durable)
        finally:
            os.close(handle)
        if new:
            sync_folder(path.parent)


def read_lines(path: Path, *, checked: bool = False) -> list[dict[str, Any]]:
    """Return all records, without checksums and without a torn last line. `checked`: each must have a checksum.

    Raises UserError, which names the line, for any other damaged one.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [_record(path, number, line, checked) for number, line in enumerate(lines, 1)]


def cut_torn_line(path: Path) -> None:
    """Cut a torn last line; call it before appending to an earlier process's file. Raises DiskFault."""
    if not path.exists():
        return
    content = path.read_bytes()
    if (whole := content.rfind(b"\n") + 1) < len(content):
        with disk_errors(path):
            os.truncate(path, whole)


def rewrite(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace the file by these records. Raises DiskFault."""
    replace_text(path, "".join(json.dumps(record) + "\n" for record in records))


def _append(handle: int, line: bytes, durable: bool) -> None:
    before = os.fstat(handle).st_size
    try:
        rest = memoryview(line)
        while rest:  # a disk that fills up writes a part of the line
            rest = rest[os.write(handle, rest) :]
        if durable:
            os.fsync(handle)
    except OSError:
        os.ftruncate(handle, before)  # the next record must start a line
        raise


def _record(path: Path, number: int, line: bytes, checked: bool) -> dict[str, Any]:
    body = line.rpartition(_MARK.encode())[0]
    try:
        record = json.loads(line)
        checksum = record.pop(CHECKSUM, None)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{path}: line {number} is damaged; restore the file or start a new run") from None
    if checked and checksum is None:
        raise UserError(f"{path}: line {number} has no checksum; restore the file or start a new run")
    if checksum is not None and zlib.crc32(body + b"}") != checksum:
        raise UserError(f"{path}: line {number} does not match its checksum; restore the file or start a new run")
    return record
