"""What processes of a verification run, as far as it can be read before they end.

A part of watcher.py's program, which needs root and has the standard library alone.
"""

import contextlib
import os
from typing import Any

from harbortrainer.docker.integrity.living import program_of
from harbortrainer.docker.integrity.marks import OPEN_EXEC, Event

MOST_PROGRAMS, MOST_FILES = 4096, 32  # the second: that a process loads
ORPHANS = -1  # the parent of PID 1, which takes those whose own has ended
_LOST: dict[str, object] = {"parent": 0, "cwd": "", "words": []}


class Programs:
    """What processes run that opened a file, and processes above them; the highest one of a container has the parent 0,
    PID 1 has ORPHANS.

    `asked`: processes whose program was read, or could not be; `new`: whose next one is about to be loaded.
    """

    def __init__(self, first: int) -> None:
        """`first`: PID 1, as this machine numbers it."""
        self._first = first
        self._space = os.readlink(f"/proc/{first}/ns/pid")
        self.asked: set[int] = set()
        self.new: set[int] = set()
        self._loading: set[int] = set()  # of these, which are looked at when the waiting events were taken in
        self._read: dict[int, dict[str, Any]] = {}
        self._ran: dict[int, list[str]] = {}  # files that a process loaded as programs, the first ones

    def note(self, event: Event) -> None:
        """Look at a process at its first open, soon after one that loads another program, and at the next one."""
        pid, known = event.pid, event.pid in self.asked
        if event.mask & OPEN_EXEC:
            self.new.add(pid)
            ran = self._ran.setdefault(pid, []) if len(self._ran) < MOST_PROGRAMS else self._ran.get(pid)
            if ran is not None and len(ran) < MOST_FILES:
                ran.append(event.path)
            if known:
                self._loading.add(pid)
            else:
                self._look_at(pid)
        elif pid in self.new or (not known and len(self.asked) < MOST_PROGRAMS):
            self.new.discard(pid)
            self._loading.discard(pid)
            self._look_at(pid)

    def take_loading(self) -> None:
        """Look at those that were loading one when the events began to be taken in."""
        for pid in self._loading:
            self._look_at(pid)
        self._loading.clear()

    def _look_at(self, pid: int) -> None:
        self.asked.add(pid)
        with contextlib.suppress(OSError, IndexError):  # it has ended
            found = self._read[pid] = program_of(pid)
            while (above := found["parent"]) not in self._read:
                if above == 1 or os.readlink(f"/proc/{above}/ns/pid") != self._space:
                    found["parent"] = ORPHANS if found is self._read.get(self._first) else 0
                    return
                found = self._read[above] = program_of(above)

    def clear(self) -> None:
        for known in (self._read, self._ran, self._loading):
            known.clear()

    def found(self) -> dict[int, dict[str, object]]:
        """Return what they run, by process; of one that had ended, only what it loaded."""
        return {
            pid: _LOST | self._read.get(pid, {}) | {"ran": self._ran.get(pid, [])} for pid in {*self._read, *self._ran}
        }
