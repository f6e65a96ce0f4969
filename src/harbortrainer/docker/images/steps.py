"""Builds that begin with the same steps: one makes these, the others wait for it.

The classic builder makes a step for each build that comes to it before the first has ended.
"""

import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_LOOK_SEC = 1.0  # between two looks at `stop`
_COMMENT = re.compile(r"^[ \t]*#.*\n?|^[ \t]*\n", re.M)
_CONTINUED = re.compile(r"\\[ \t]*\n")
_BEGUN = re.compile(r"Step (\d+)/\d+ : ")
_changed = threading.Condition()
_running: list["_Build"] = []

type Events = Iterator[dict[str, Any]]


@dataclass(slots=True, eq=False)
class _Build:
    steps: list[str]
    done: int = 0

    def makes_first(self, steps: list[str]) -> bool:
        """Return whether it has yet to make a RUN that others with these steps begin with, too."""
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self.steps, steps, strict=False))
        return any(own.upper().startswith("RUN") for own, _ in list(shared)[self.done :])

    def read(self, events: Events) -> Events:
        for event in events:
            if begun := _BEGUN.match(event.get("stream", "")):
                with _changed:
                    self.done = int(begun[1]) - 1
                    _changed.notify_all()
            yield event


@contextlib.contextmanager
def in_turn(dockerfile: str, stop: threading.Event) -> Iterator[Callable[[Events], Events]]:
    """Wait, until `stop` is set, for builds of this process that make the first steps of this Dockerfile.

    Within the block others wait for this build; it yields what its events are to be read through.
    """
    own = _Build(_first_steps(dockerfile))
    with _changed:
        while any(one.makes_first(own.steps) for one in _running) and not stop.is_set():
            _changed.wait(_LOOK_SEC)
        _running.append(own)
    try:
        yield own.read
    finally:
        with _changed:
            _running.remove(own)
            _changed.notify_all()


def _first_steps(dockerfile: str) -> list[str]:
    """The steps before the first one that depends on files, as they are written."""
    steps = _CONTINUED.sub(" ", _COMMENT.sub("", dockerfile)).splitlines()
    return list(itertools.takewhile(lambda step: not step.lstrip().upper().startswith(("COPY", "ADD")), steps))
