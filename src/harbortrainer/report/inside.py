"""Reads files of a trial's folder, in which a policy may have left links and pipes."""

import os
import stat
from pathlib import Path


def read_inside(folder: Path, file: Path, most: int = -1) -> tuple[bytes, int] | None:
    """Read the first `most` bytes and the size; None for what is no plain file below `folder`, also by way of links."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            found = os.fstat(opened.fileno())
            held = Path(f"/proc/self/fd/{opened.fileno()}")  # where it was opened, whatever has its name now
            real = (held if held.exists() else file).resolve()
            if stat.S_ISREG(found.st_mode) and real.is_relative_to(folder.resolve()):
                return opened.read(most), found.st_size
    except (OSError, ValueError, RuntimeError):  # gone, a name with a null byte, links in a circle
        pass
    return None
