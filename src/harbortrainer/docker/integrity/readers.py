"""The programs of a verification that opened a file. Pure: no I/O."""

import functools
import posixpath
from collections.abc import Collection, Iterator, Mapping, Set

from harbortrainer.docker.integrity.living import MOST_ARGUMENTS, TESTS, is_system
from harbortrainer.docker.integrity.own_files import REWARDS
from harbortrainer.docker.integrity.programs import ORPHANS
from harbortrainer.docker.integrity.watch import Seen, WatchProgram
from harbortrainer.docker.integrity.watched import MOST_READERS

MOST_PARENTS = 32
LOST = WatchProgram(0, "", ())
_CODE = (" ", "\n", "://")  # what an argument has that is code, or an address


class Readers:
    """The programs of a verification that opened files."""

    def __init__(self, seen: Seen, targets: Mapping[str, str]) -> None:
        """`targets`: where links lead."""
        self._seen, self._opened, self._targets = seen, seen.opened or {}, targets

    @functools.cached_property
    def verifiers(self) -> set[int]:
        """Processes that opened a file of the tests."""
        return {one for test in self._tests for one in self._seen.readers[test]}

    @functools.cached_property
    def _tests(self) -> list[str]:
        return [path for path in self._seen.readers if path.startswith(TESTS)]

    def are_alone(self, path: str) -> bool:
        """Return whether only tests, once they began, and programs that start no others opened it."""
        readers = self._of(path)
        return bool(readers) and all(self._is_alone(one, path) for one in readers)

    def are_before_tests(self, path: str) -> bool:
        """Return whether a test itself, or what sets tests up, opened it."""
        readers = self._seen.readers.get(path, ())
        return any(one in self.verifiers or not self._is_below_tests(one) for one in readers)

    def are_asked(self, path: str, names: Collection[str]) -> bool:
        """Return whether only tests, and programs that these start for it, opened it.

        Its path is an argument of such a program; or that starts no others or is called as one of `names`, and has
        neither code nor an address among its arguments, of which the file could change the meaning. What sets tests up
        is none, nor what runs a file of /etc. Some may have ended before they could be looked at, and all but for those
        in /etc itself, where shells look for code.
        """
        readers, programs = self._of(path), self._seen.programs
        known = [one for one in readers if self._is_known(one)]
        if any(one not in programs or path in programs[one].ran for one in {*readers}.difference(known)):
            return False
        may_be_lost = posixpath.dirname(path) != "/etc" and self.are_alone(path)
        return (bool(known) or may_be_lost) and all(self._is_asked(one, path, names) for one in known)

    def run_work(self, path: str, runs: Collection[str], programs: Collection[str], *, may_be_lost: bool) -> bool:
        """Return whether only processes opened it of which each, or one above it, runs one of `runs`, or was loaded
        from one of `programs`.

        `may_be_lost`: one that ended before it could be looked at may have.
        """
        readers = self._seen.readers.get(path, ())
        return bool(readers) and all(self._is_runner(one, runs, programs, may_be_lost) for one in readers)

    def written_by(self, work: Set[str]) -> set[str]:
        """Return what programs of the work, or what these started, wrote of verification's own."""
        writers, opened = self._seen.writers, self._seen.opened
        if opened is None:
            return {path for path in writers if path.startswith(TESTS)}
        runs = {one for path in work & opened.keys() if not is_system(path) for one in self._seen.readers[path]}
        return {path for path, by in writers.items() if any(self._is_works(one, path, work, runs) for one in by)}

    def _is_works(self, writer: int, written: str, work: Set[str], runs: Collection[int]) -> bool:
        """Whether it, or one above it, was loaded from `work` or runs it; one told to write there copies.

        `runs`: processes that opened `work`: those above it start what that says, unless they are tests. An orphan
        may be the work's, and who wrote a reward and had ended.
        """
        for one in self._above(writer):
            program = self._seen.programs.get(one, LOST)
            if not work.isdisjoint(program.ran):
                return True
            if not program.words:
                return one == ORPHANS or (one > 0 and written in REWARDS)
            words = {posixpath.normpath(posixpath.join(program.cwd, word)) for word in ("", *program.words)}
            is_told = one == writer and not words.isdisjoint((written, posixpath.dirname(written)))
            own = {*self._runs(one)}
            if any(path.startswith(TESTS) for path in own):
                return False
            is_test = any(f"{word}/".startswith(TESTS) for word in words)
            starts = one in runs and not is_test and (one != writer or written not in REWARDS)
            if not is_told and (starts or not work.isdisjoint(own)):
                return True
        return False

    def _is_runner(self, process: int, runs: Collection[str], programs: Collection[str], may_be_lost: bool) -> bool:
        for one in self._above(process):
            if one not in self._seen.programs:
                return may_be_lost and bool(runs)
            loaded = self._seen.programs[one].ran
            if any(run in runs for run in self._runs(one)) or any(run in programs for run in loaded):
                return True
            if one in self.verifiers:
                return False
        return False

    def _runs(self, process: int) -> Iterator[str]:
        """What this process opened and runs: its program, or the first argument of an interpreter."""
        program = self._seen.programs[process]
        words = [word for word in program.words[1:] if not word.startswith("-")][:1]
        for word in (*program.words[:1], *words):
            path = posixpath.normpath(posixpath.join(program.cwd, word))
            path = self._targets.get(path, path)
            if process in self._seen.readers.get(path, ()):
                yield path

    def _of(self, path: str) -> tuple[int, ...]:
        readers = self._seen.readers.get(path, ())
        return readers if len(readers) < MOST_READERS else ()

    def _is_alone(self, process: int, path: str) -> bool:
        if process not in self.verifiers:
            return all(one.parent != process for one in self._seen.programs.values())
        tests = (test for test in self._tests if process in self._seen.readers[test])
        return any(self._opened[test] < self._opened[path] for test in tests)

    def _is_asked(self, process: int, path: str, names: Collection[str]) -> bool:
        if process in self.verifiers:
            return self._is_alone(process, path)
        program = self._seen.programs[process]
        is_run = path in program.ran and (path.startswith("/etc/") or not self._tests[1:])
        if is_run or not self._is_below_tests(process):
            return False
        name, *words = program.words
        names_it = path in (posixpath.normpath(posixpath.join(program.cwd, word)) for word in words)
        if names_it and path not in program.ran:
            return True
        if len(words) + 1 == MOST_ARGUMENTS or any(code in word for word in words for code in _CODE):
            return False
        return names_it or posixpath.basename(name) in names or self._is_alone(process, path)

    def _is_known(self, process: int) -> bool:
        """Whether it, and all that is above it, could be looked at before it ended."""
        *above, last = self._above(process)
        return last <= 0 and all(any(self._seen.programs[one].words) for one in above)

    def _is_below_tests(self, process: int) -> bool:
        """Whether a test started it, or what that started, other than the program that sets tests up."""
        above = self.verifiers.intersection(self._above(process))
        own = sum(not above.isdisjoint(self._seen.readers[test]) for test in self._tests)
        return 0 < own >= min(len(self._tests), 2)

    def _above(self, process: int) -> Iterator[int]:
        """The process, and those above it as far as they are known."""
        for _ in range(MOST_PARENTS):
            yield process
            if process not in self._seen.programs:
                return
            process = self._seen.programs[process].parent
