"""What is verification's own: the tests that were brought for it, and the reward that it leaves.

A part of watcher.py's program, which needs root and has the standard library alone.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping

from harbortrainer.docker.integrity.living import OWN, is_common, parent_of
from harbortrainer.docker.integrity.marks import Event

REWARDS = tuple(f"{OWN[1]}reward.{kind}" for kind in ("txt", "json"))
_MOST_WRITERS = 65_536  # files and their names
_MOST_ABOVE = 64  # parents of a process


class OwnFiles:
    """What happens to these files, whoever does it: programs of the work run with verification's rights.

    A reward may be written again by its writer, and by what that has started. `changed`: what was changed otherwise.
    """

    def __init__(self, first: int) -> None:
        """`first`: PID 1, as this machine numbers it."""
        self.changed: set[str] = set()
        self._root = f"/proc/{first}/root"
        self._writers: set[int] = set()  # of rewards
        self._by: dict[str | int, set[int]] = {}  # who wrote what by name, and who did last by inode

    def note_write(self, event: Event) -> None:
        """Take in that a file was written."""
        if len(self._by) < _MOST_WRITERS:
            self._by.setdefault(event.path, set()).add(event.pid)
            if event.file >= 0:
                self._by[os.fstat(event.file).st_ino] = {event.pid}  # another file may have had that number
        if event.path not in REWARDS:
            return
        if self._writers and self._writers.isdisjoint(above(event.pid)):
            self.changed.add(event.path)
        self._writers.add(event.pid)

    def changes(self, tests: Collection[str], since: float, held: Collection[str]) -> set[str]:
        """Return what was changed. `since`: when tests were there; `held`: files that can still be written."""
        states = {path: self._state(path) for path in (*REWARDS, *tests)}
        found = {path for path in tests if not (one := states[path]) or one.st_ctime > since}
        found |= {path for path in REWARDS if (one := states[path]) and not stat.S_ISREG(one.st_mode)}
        return self.changed | found | {*held}.intersection(states)

    def writers(
        self, tests: Collection[str], since: float, readers: Mapping[str, Collection[int]]
    ) -> dict[str, list[int]]:
        """Return who wrote rewards, and what others opened where programs look that are none of the work, but `tests`.

        Of the latter, files that are other ones since then, or gone. Without `readers`, all that was written.
        """
        paths = {path for path in readers or map(str, self._by) if is_common(path)}.difference(tests)
        new = {path for path in paths if (one := self._state(path)) is None or one.st_ctime > since}
        found = {path: self._writers_of(path) for path in (*REWARDS, *new)}
        return {
            path: sorted(by)
            for path, by in found.items()
            if path in REWARDS or not by.issuperset(readers.get(path, (0,)))
        }

    def _writers_of(self, path: str) -> set[int]:
        state = self._state(path)
        moved = self._by.get(state.st_ino, set()) if state else set[int]()
        return self._by.get(path, set()) | moved

    def _state(self, path: str) -> os.stat_result | None:
        with contextlib.suppress(OSError):
            return os.lstat(self._root + path)
        return None


def above(pid: int) -> Iterator[int]:
    """Yield the process, and those above it that live."""
    for _ in range(_MOST_ABOVE):
        if not pid:
            return
        yield pid
        pid = parent_of(pid)
