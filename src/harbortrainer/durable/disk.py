"""Recognises that a disk cannot be written, and raises DiskFault: one line with path, reason and fix."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harbortrainer.commands import continuing
from harbortrainer.errors import DiskFault

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)  # the last: ulimit -f
PROBE_BYTES = 256 * 1024  # more than one trial writes
JOURNAL = "ledger.jsonl"


@contextlib.contextmanager
def disk_errors(path: Path | None = None) -> Iterator[None]:
    """Raise DiskFault when the block fails because a disk cannot be written. None: the path that the error names."""
    try:
        yield
    except OSError as error:
        refuse(error, path or Path(error.filename or "standard output"))
        raise


def refuse(error: BaseException, path: Path) -> None:
    """Raise DiskFault if `error` means that the disk of `path` cannot be written."""
    if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
        raise disk_fault(error.errno, path) from error


def require_writable(folder: Path) -> None:
    """Write PROBE_BYTES in `folder`, which is created if missing. Blocks. Raises DiskFault."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())


def disk_fault(number: int, path: Path) -> DiskFault:
    """Return the error: path, reason, fix, and the command that continues the run."""
    run = next((folder for folder in path.absolute().parents if (folder / JOURNAL).exists()), None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        fix = "make room on that disk"
        if run is not None:
            fix += f" ({run / 'rollouts'}, folders of finished trials, may be deleted)"
    else:
        fix = "mend the disk or make it writable"
    then = f", then continue with: {continuing(run)}" if run is not None else ", then start again"
    return DiskFault(f"{path}: cannot be written: {os.strerror(number)}; {fix}{then}")
