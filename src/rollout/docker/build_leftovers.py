"""What the classic builder leaves: layers of other stages and of failed builds, as images without name or label."""

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

from docker.errors import APIError

from src.caches import cache_folder
from src.rollout.docker.engine import engine
from src.rollout.docker.image_uses import IMAGES

_STEP = re.compile(r"Step \d+/\d+ : (\w+)")
_LAYER = re.compile(r" ---> ([0-9a-f]{12,64})\s*$")
_CACHED = " ---> Using cache"
_layers: list[str] = []  # made by builds of this process, oldest first
_lock = threading.Lock()


def noting_layers(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events of a classic build as they come; the layers that it makes itself are noted for `sweeping`."""
    ours = False
    for event in events:
        text = event.get("stream", "")
        if step := _STEP.match(text):
            ours = step[1].upper() != "FROM"
        elif text.startswith(_CACHED):
            ours = False
        elif ours and (layer := _LAYER.match(text)):
            _layers.append(layer[1])
        yield event


@contextlib.contextmanager
def sweeping() -> Iterator[None]:
    """Around a build. After the last one that this user has under way, noted layers that nothing needs are removed.

    Not before: another build may be between two steps that need them. Without a lock they stay.
    """
    try:
        cache_folder(IMAGES).mkdir(parents=True, exist_ok=True)
        lock = os.open(cache_folder(IMAGES) / ".builds", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _sweep()
    finally:
        os.close(lock)


def _sweep() -> None:
    with _lock:
        layers, _layers[:] = list(dict.fromkeys(reversed(_layers))), []
    for layer in layers:
        with contextlib.suppress(APIError):  # gone, or another image or a container is made of it
            if not engine().inspect_image(layer)["RepoTags"]:
                engine().remove_image(layer, noprune=True)
