"""The disk of the run directory cannot be written: recognised wherever it shows, and told in one plain line."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harbortrainer.errors import DiskFault

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
PROBE_BYTES = 256 * 1024  # more than one trial leaves: what cannot hold it is full for every purpose
JOURNAL = "ledger.jsonl"


@contextlib.contextmanager
def disk_errors(path: Path | None = None) -> Iterator[None]:
    """Raises DiskFault when its block fails because a disk cannot be written. None: the path that the error names."""
    try:
        yield
    except OSError as error:
        refuse(error, path or Path(error.filename or "."))
        raise


def refuse(error: BaseException, path: Path) -> None:
    """Raises DiskFault when `error` says that the disk of `path` cannot be written."""
    if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
        raise disk_fault(error.errno, path) from error


def require_writable(folder: Path) -> None:
    """Raises DiskFault unless PROBE_BYTES can be written in `folder`, which is made where it is missing. Blocks."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())


def disk_fault(number: int, path: Path) -> DiskFault:
    """What cannot be written, what to do, and how to go on."""
    run = next((folder for folder in path.absolute().parents if (folder / JOURNAL).exists()), None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        fix = "make room on that disk"
        if run is not None:
            fix += f" (a run goes on without {run / 'rollouts'}, Harbor's folders of finished trials)"
    else:
        fix = "mend the disk or make it writable"
    then = f", then continue with: python -m src.train resume={run}" if run is not None else ", then start again"
    return DiskFault(f"{path}: cannot be written: {os.strerror(number)}; {fix}{then}")
