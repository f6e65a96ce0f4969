"""Append-only JSON lines that survive a kill: a torn last line is cut when the file is opened again."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from src.run.files import replace_text


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one record and fsync it."""
    with path.open("a") as file:
        file.write(json.dumps(record, allow_nan=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole records; a torn last line is left out. Raises ValueError for a damaged record before it."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def rewrite(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace the whole file."""
    replace_text(path, "".join(json.dumps(record) + "\n" for record in records))
