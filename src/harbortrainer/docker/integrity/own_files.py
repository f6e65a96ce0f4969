"""What is verification's own: the tests that were brought for it, and the reward that it leaves.

A part of watcher.py's program, which needs root and has the standard library alone.
"""

import contextlib
import os
from collections.abc import Collection, Iterator

from harbortrainer.docker.integrity.living import OWN, parent_of
from harbortrainer.docker.integrity.marks import Event

REWARDS = tuple(f"{OWN[1]}reward.{kind}" for kind in ("txt", "json"))
_MOST_ABOVE = 64  # parents of a process


class OwnFiles:
    """What happens to these files, whoever does it: programs of the work run with verification's rights.

    A reward may be written again by its writer, and by what that has started since.
    `changed`: what was changed otherwise.
    """

    def __init__(self, first: int) -> None:
        """`first`: PID 1, as this machine numbers it."""
        self.changed: set[str] = set()
        self._root = f"/proc/{first}/root"
        self._writers: set[int] = set()
        self._before: set[int] = set()  # processes that were there when one was written

    def note_write(self, event: Event, known: Collection[int]) -> None:
        """Take in that a file was written. `known`: processes that have opened something."""
        if event.path not in REWARDS:
            return
        if self._writers and not self._may_write(event.pid):
            self.changed.add(event.path)
        self._writers.add(event.pid)
        self._before.update(known)

    def _may_write(self, pid: int) -> bool:
        met = (one for one in _above(pid) if one in self._writers or one in self._before)
        return next(met, None) in self._writers

    def changes(self, tests: Collection[str], since: float, held: Collection[str]) -> set[str]:
        """Return what was changed. `since`: when tests were there; `held`: files that can still be written."""
        states = {path: self._state(path) for path in (*REWARDS, *tests)}
        found = {path for path in tests if not (one := states[path]) or one.st_ctime > since}
        # moved here, or given another time
        found |= {path for path in REWARDS if (one := states[path]) and one.st_ctime_ns != one.st_mtime_ns}
        return self.changed | found | {*held}.intersection(states)

    def _state(self, path: str) -> os.stat_result | None:
        with contextlib.suppress(OSError):
            return os.lstat(self._root + path)
        return None


def _above(pid: int) -> Iterator[int]:
    """The process, and those above it that live."""
    for _ in range(_MOST_ABOVE):
        if not pid:
            return
        yield pid
        pid = parent_of(pid)
