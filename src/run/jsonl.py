"""Append-only JSON lines that survive a kill: a torn last line is cut, a damaged one before it is named."""

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from src.errors import UserError
from src.run.files import replace_text

CHECKSUM = "crc"


def append_line(path: Path, record: dict[str, Any], *, durable: bool = True, checked: bool = False) -> None:
    """Append one record; `durable`: fsynced, `checked`: with a checksum that `read_lines` verifies."""
    text = json.dumps(record, allow_nan=True)
    if checked:
        text = f'{text[:-1]}, "{CHECKSUM}": {zlib.crc32(text.encode())}}}'
    with path.open("a") as file:
        file.write(text + "\n")
        file.flush()
        if durable:
            os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole records, without their checksums; a torn last line is left out.

    Raises UserError that names a damaged line before it.
    """
    if not path.exists():
        return []
    whole = _whole(path.read_bytes())
    return [_record(path, number, line) for number, line in enumerate(whole.decode(errors="replace").splitlines(), 1)]


def cut_torn_line(path: Path) -> None:
    """To be called before the first record is appended to a file of an earlier process."""
    if not path.exists():
        return
    content = path.read_bytes()
    if (whole := len(_whole(content))) < len(content):
        os.truncate(path, whole)


def rewrite(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace the whole file."""
    replace_text(path, "".join(json.dumps(record) + "\n" for record in records))


def _whole(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        checksum = record.pop(CHECKSUM, None)
    except (ValueError, AttributeError):
        raise UserError(f"{path}: line {number} is damaged; restore the file or start a new run") from None
    if checksum is not None and zlib.crc32(json.dumps(record, allow_nan=True).encode()) != checksum:
        raise UserError(f"{path}: line {number} does not match its checksum; restore the file or start a new run")
    return record
