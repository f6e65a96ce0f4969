"""Builds that begin with the same steps: one makes these, the others wait for it, in this process and in others.

The classic builder makes a step for each build that comes to it before the first has ended.
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

from harbortrainer.durable.files import cache_folder, make_folder

_LOOK_SEC = 0.2  # between two tries to get a lock
_COMMENT = re.compile(r"^[ \t]*#.*\n?|^[ \t]*\n", re.M)
_CONTINUED = re.compile(r"\\[ \t]*\n")
_BEGUN = re.compile(r"Step (\d+)/\d+ : ")

type Events = Iterator[dict[str, Any]]


@contextlib.contextmanager
def in_turn(dockerfile: str, stop: threading.Event) -> Iterator[Callable[[Events], Events]]:
    """Wait, until `stop` is set, for builds of this user that have yet to make first steps of this Dockerfile.

    Within the block others wait for this build; it yields what its events are to be read through. Raises DiskFault.
    """
    with contextlib.ExitStack() as held:
        locks = dict[int, IO[str]]()
        for step, name in _shared(dockerfile).items():
            locks[step] = held.enter_context(lock_file(name))
        while not _all(locks) and not stop.wait(_LOOK_SEC):
            pass

        def read(events: Events) -> Events:
            for event in events:
                if begun := _BEGUN.match(event.get("stream", "")):
                    for step in [step for step in locks if step < int(begun[1])]:
                        locks.pop(step).close()
                yield event

        yield read


def lock_file(name: str, purpose: str = "builds") -> IO[str]:
    """Open the file that stands for something of Docker here; the kernel frees its lock when a process dies.

    Raises DiskFault.
    """
    key = hashlib.sha256(f"{os.environ.get('DOCKER_HOST', '')} {name}".encode()).hexdigest()
    folder = cache_folder(purpose)
    make_folder(folder)
    return (folder / key[:32]).open("w")


def locked(file: IO[str]) -> bool:
    """Lock a file if no one else has it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _all(locks: dict[int, IO[str]]) -> bool:
    """Lock all of them or none: who waits keeps nobody from steps that are made already."""
    if all(map(locked, locks.values())):
        return True
    for file in locks.values():
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _shared(dockerfile: str) -> dict[int, str]:
    """Each RUN before the first step that depends on files: its number, and itself with all before it."""
    steps = _CONTINUED.sub(" ", _COMMENT.sub("", dockerfile)).splitlines()
    first = itertools.takewhile(lambda step: not step.lstrip().upper().startswith(("COPY", "ADD")), steps)
    so_far = itertools.accumulate(first, "{}\n{}".format)
    return {
        at: text for at, text in enumerate(so_far, 1) if text.rpartition("\n")[2].lstrip().upper().startswith("RUN")
    }
