"""When an image of ours was used last and who uses it now: Docker keeps neither. One file an image and process."""

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from src.caches import cache_folder
from src.rollout.docker import owner

UNUSED_DAYS = 30.0  # an image that was not used for this long is removed before a run
IMAGES = "images"  # the part of the caches that is ours
NOTE_SEC = 3600.0  # a use is noted at most this often
_noted: dict[str, float] = {}  # reference -> clock time


def note_use(reference: str) -> None:
    """This process uses the image now. Nothing happens where the file cannot be written."""
    now = time.monotonic()
    if now - _noted.get(reference, -NOTE_SEC) < NOTE_SEC:
        return
    marks = json.dumps(owner.process())
    folder = _folder(reference)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / hashlib.sha256(marks.encode()).hexdigest()[:16]).write_text(marks)
        if reference not in _noted:
            _forget_the_dead(folder)
    _noted[reference] = now


def last_use(reference: str) -> float:
    """Seconds since 1970; 0 = never noted."""
    return max((used for _, used in _uses(reference)), default=0.0)


def is_in_use(reference: str) -> bool:
    """Whether a process that we can see, and that lives, has used the image."""
    return any(owner.owner_is_alive(marks) for marks, _ in _uses(reference))


def forget_uses(reference: str) -> None:
    shutil.rmtree(_folder(reference), ignore_errors=True)


def _folder(reference: str) -> Path:
    return cache_folder(IMAGES) / quote(reference, safe=":")


def _uses(reference: str) -> Iterator[tuple[dict[str, str], float]]:
    for file in _files(_folder(reference)):
        with contextlib.suppress(OSError, ValueError):
            yield json.loads(file.read_text()), file.stat().st_mtime


def _files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _forget_the_dead(folder: Path) -> None:
    for file in _files(folder):
        with contextlib.suppress(OSError, ValueError):
            if owner.owner_is_dead({owner.LABEL: "1"} | json.loads(file.read_text())):
                file.unlink()
