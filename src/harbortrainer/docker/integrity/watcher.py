"""A program that watches verifications from outside. It needs root on the containers' machine, and ends with its input.

It is made of the standard library alone (`main`). Requests come as JSON objects, one a line:

* {"begin": ID, "room": SECONDS to wait for other watches, CONTAINER…}, {"end": ID, "tests": PATHS, "since": TIME}:
  watch, and say what happened, and which of the tests were changed since
* {"look": ID, CONTAINER…, "during": SECONDS}: say which processes of the policy there are, and which run meanwhile

CONTAINER…: "pid": its first process, "kept": those that are no policy's, "shell": one that is ending, or null; all as
this machine numbers them. Each answer has the ID.
"""

import contextlib
import errno
import json
import os
import resource
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from harbortrainer.docker.integrity.kernel_objects import objects_of
from harbortrainer.docker.integrity.living import Look, living, settled
from harbortrainer.docker.integrity.traces import Traces
from harbortrainer.docker.integrity.watched import Watch

TRACE_SEC, IDLE_SEC = 0.1, 1.0  # between two looks at the calls of processes, and at whether some are traced


class Program:
    """Takes requests, and the events of all watches in turn. Each request has a thread of its own."""

    def __init__(self) -> None:
        self._traces = Traces()
        self._watches: dict[str, Watch] = {}
        self._wanted: set[str] = set()  # not ended
        self._by_descriptor: dict[int, Watch] = {}
        self._poll = select.epoll()
        self._printing = threading.Lock()

    def run(self) -> None:
        """Run until standard input ends."""
        self._answer(ready=True, untraced=self._traces.why)
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        rest, data = b"", b"\n"
        while data:
            traced = [watch for watch in list(self._watches.values()) if watch.trace]
            for descriptor, _ in self._poll.poll(TRACE_SEC if traced else IDLE_SEC):
                if descriptor == sys.stdin.fileno():
                    data = os.read(descriptor, 1 << 16)
                    *lines, rest = (rest + data).split(b"\n")
                    for line in filter(None, lines):
                        threading.Thread(target=self._serve, args=(json.loads(line),), daemon=True).start()
                elif (watch := self._by_descriptor.get(descriptor)) is not None:
                    self._look_at(watch, watch.take)
                    if watch.lost:  # to watch on costs more than it shows
                        self._leave(watch)
            for watch in traced:
                self._look_at(watch, watch.take_calls)
        self._traces.close()

    def _look_at(self, watch: Watch, take: Callable[[], object]) -> None:
        if watch.lock.acquire(blocking=False):  # otherwise it ends just now
            try:
                if not watch.ended:
                    take()
            finally:
                watch.lock.release()

    def _leave(self, watch: Watch) -> None:
        for descriptor in watch.marks.descriptors:
            if self._by_descriptor.pop(descriptor, None) is not None:
                self._poll.unregister(descriptor)

    def _serve(self, request: Mapping[str, Any]) -> None:
        """Raises KeyError for a request of another kind."""
        kind = next(iter(request))
        work = {"begin": self._begin, "end": self._end, "look": self._look}[kind]
        try:
            work(request[kind], request)
        except OSError as error:
            self._answer(id=request[kind], failed=f"{type(error).__name__}: {error}")

    def _begin(self, name: str, request: Mapping[str, Any]) -> None:
        self._wanted.add(name)
        watch = self._watches[name] = self._watch(name, request)
        if name not in self._wanted:
            return self._close(name)
        for descriptor in watch.marks.descriptors:
            self._by_descriptor[descriptor] = watch
            self._poll.register(descriptor, select.EPOLLIN)
        self._answer(id=name, own=watch.own)

    def _watch(self, name: str, request: Mapping[str, Any]) -> Watch:
        """Waits while others have all that the kernel has for a user (128 groups of events), and holds none of it."""
        give_up = time.monotonic() + request["room"]
        while True:
            try:
                return Watch(request, self._traces)
            except OSError as error:
                if error.errno != errno.EMFILE or time.monotonic() > give_up or name not in self._wanted:
                    raise
            time.sleep(TRACE_SEC)

    def _end(self, name: str, request: Mapping[str, Any]) -> None:
        self._wanted.discard(name)
        if (watch := self._watches.get(name)) is None:
            raise ProcessLookupError(f"{name} is not watched")
        self._leave(watch)
        try:
            self._answer(id=name, seen=watch.end(request["tests"], request["since"]))
        finally:
            self._close(name)

    def _close(self, name: str) -> None:
        if (watch := self._watches.pop(name, None)) is not None:
            watch.close()

    def _look(self, name: str, request: Mapping[str, Any]) -> None:
        first, before = request["pid"], settled(request).processes
        time.sleep(request["during"])
        self._answer(id=name, processes=[*living(first, before, Look(first, before).processes), *objects_of(first)])

    def _answer(self, **shown: object) -> None:
        with self._printing, contextlib.suppress(BrokenPipeError):  # standard input ends, too
            print(json.dumps(shown), flush=True)


def _crash(arguments: threading.ExceptHookArgs) -> None:
    """A fault of one thread ends the program, which is started again."""
    traceback.print_exception(arguments.exc_value)
    sys.stderr.flush()
    os._exit(1)


def _take_precedence() -> None:
    """Have this thread run before other processes, so that one that ends soon is looked at; those of requests wait."""
    with contextlib.suppress(OSError):  # it may not
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def main() -> None:
    """Serve requests until standard input ends."""
    _take_precedence()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.excepthook = _crash
    Program().run()
    os._exit(0)  # threads may wait for the kernel
