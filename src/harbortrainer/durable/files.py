"""Writes whole files atomically and durably, reads and writes JSON, and names the cache folder."""

import atexit
import contextlib
import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

from harbortrainer.durable.disk import disk_errors
from harbortrainer.errors import UserError

log = logging.getLogger("harbortrainer")


def replace_text(path: Path, text: str) -> None:
    """Replace the file atomically: a reader sees the old text or the new one. Raises DiskFault."""
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that replaces `path`, fsynced with its folder, when the block succeeds. Raises DiskFault."""
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}")  # no other thread or process has it
    with disk_errors(path):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)  # renamed unless the block failed


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and fsync each entry. Raises DiskFault."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with disk_errors(path):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """fsync a folder: makes creations and renames in it durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """Get object in a file of a run. Raises UserError when it is damaged: no JSON, another value, or without `keys`."""
    value = read_value(path)
    if not isinstance(value, dict):
        raise damaged(path, "it holds no object")
    if lacking := [key for key in keys if key not in value]:
        raise damaged(path, f"no {', '.join(lacking)}")
    return value


def read_value(path: Path) -> Any:
    """Return the value in a JSON file of a run. Raises UserError when it is damaged."""
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, why: str) -> UserError:
    """Return a file of a run that cannot be used."""
    return UserError(f"resume={path.parent}: {path.name} is damaged ({why}); restore it or start a new run")


def write_json(path: Path, value: Any) -> None:
    """Replace the file by indented JSON. Raises DiskFault."""
    replace_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def cache_folder(part: str) -> Path:
    """Return the cache folder of one part of the program; it may not exist yet."""
    return _cache(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / part


@cache
def _cache(base: str) -> Path:
    """The user's folder, which is created; a folder of this process where it cannot be, as in a service's home."""
    folder = Path(base, "harbortrainer")
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        return folder
    log.warning("%s cannot be written: nothing is cached after this process; set XDG_CACHE_HOME", folder)
    with contextlib.suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix="harbortrainer-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
