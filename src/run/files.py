"""Small files that a reader never sees half written."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write-new-then-rename: the whole file is the old text or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)
