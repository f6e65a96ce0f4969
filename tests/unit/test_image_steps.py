"""Builds that begin alike: one makes the first steps, the others wait for these and no longer."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from harbortrainer.docker.images.steps import in_turn

FIRST = "FROM base\n# words\nENV A=1\nRUN apt-get update && \\\n  # more\n    apt-get install x\n"
WAIT_SEC = 30.0


class Build(threading.Thread):
    """One that says that it begins a step whenever `go` is released."""

    def __init__(self, dockerfile: str, steps: int = 5) -> None:
        super().__init__(daemon=True)
        self._dockerfile, self._steps = dockerfile, steps
        self.stop, self.go, self.begun = threading.Event(), threading.Semaphore(0), threading.Event()
        self.start()

    def run(self) -> None:
        with in_turn(self._dockerfile, self.stop) as read:
            self.begun.set()
            for _ in read(self._events()):
                pass

    def _events(self) -> Iterator[dict[str, Any]]:
        for step in range(1, self._steps + 1):
            assert self.go.acquire(timeout=WAIT_SEC)
            yield {"stream": f"Step {step}/{self._steps} : …"}
        assert self.go.acquire(timeout=WAIT_SEC)

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self.go.release()


def end(*builds: Build) -> None:
    for build in builds:
        build.let(6)
        build.join(WAIT_SEC)
        assert not build.is_alive()


def test_a_build_that_ends_or_begins_otherwise_keeps_nobody() -> None:
    one = Build(FIRST)
    assert one.begun.wait(WAIT_SEC)
    for text in ("FROM other\nRUN a\n", "FROM base\nENV A=1\nCOPY x /x\nRUN apt-get update\n", "FROM base\nENV A=1\n"):
        free = Build(text)
        assert free.begun.wait(WAIT_SEC), text
        end(free)
    same = Build(FIRST)
    assert not same.begun.wait(0.2)
    stopped = Build(FIRST)
    stopped.stop.set()
    assert stopped.begun.wait(WAIT_SEC), "a cancelled build does not wait"
    end(stopped)
    end(one)
    assert same.begun.wait(WAIT_SEC)
    end(same)


def test_builds_of_other_processes_are_waited_for_until_these_die() -> None:
    program = f"import sys, threading\nfrom harbortrainer.docker.images.steps import in_turn\nwith in_turn({FIRST!r}, "
    program += "threading.Event()):\n    print(flush=True)\n    sys.stdin.read()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        one = Build(f"{FIRST}RUN pip install a\n")
        assert not one.begun.wait(0.5)
        process.kill()
        assert one.begun.wait(WAIT_SEC)
        end(one)
