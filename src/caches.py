"""Where things are kept that can be made again: below XDG_CACHE_HOME, else ~/.cache."""

import os
from pathlib import Path


def cache_folder(part: str) -> Path:
    """The folder of one kind of them; it may not be there yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "harbortrainer" / part
