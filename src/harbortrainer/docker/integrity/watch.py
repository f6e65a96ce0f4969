"""Watches verifications: asks the program watcher.py, which runs beside the daemon, and reads what it saw."""

import asyncio
import atexit
import contextlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any

import requests
from docker.errors import APIError, DockerException

from harbortrainer.docker.box.first_process import noted
from harbortrainer.docker.daemon import call, pid_of
from harbortrainer.docker.integrity.privileged import RootProgram, start
from harbortrainer.errors import one_line

READY_SEC, END_SEC = 20.0, 60.0
ROOM_SEC = 300.0  # that a verification waits for others, beyond 64 at once
AGAIN_SEC = 60.0  # until a program is started again that did not start
MOST_PUT = 64  # paths of a verification
MOST_BYTES = 32 * 1024 * 1024  # of the watcher's answer
MODULE = "harbortrainer.docker.integrity.watcher"
_FAILURES = (OSError, DockerException, requests.RequestException, TimeoutError, ValueError)
_log = logging.getLogger("harbortrainer")
_told: set[str] = set()


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the policy that lived when verification began. `ran`: it used a processor since, or ended.

    `pid`: as the container numbers it; 0 = not known. The first process, which only sleeps unless it was changed, has
    the `name` "1 (…)".
    """

    name: str
    ports: tuple[int, ...] = ()
    ran: bool = True
    writes: tuple[str, ...] = ()  # files that it has open for writing
    pid: int = 0
    sockets: tuple[str, ...] = ()  # names of Unix sockets on which it listens
    busy: bool = False  # it waits for a processor or a disk, if anything
    holds: bool = False  # what others meet though it sleeps: a lock, a socket that has a name, kernel objects


@dataclass(frozen=True, slots=True)
class WatchProgram:
    """A process of verification that opened a file. `words`: the first of its command line.

    `ran`: files that it loaded as programs, one after the other; of one that had ended nothing else is known.
    """

    parent: int
    cwd: str
    words: tuple[str, ...]
    ran: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What happened during a verification.

    `opened`: paths in the order of their first opens by verification, with their places; None = not known. `tampered`:
    files of its own that processes of the policy used, and how they reached its processes. `readers`: by path,
    the first processes that opened it, in their order; `programs`: of readers, by process, where it could be read.
    `late`: other files that they wrote; `moved`: they may have renamed or linked some, and `made` are the inodes that
    verification wrote; `changed`: or made, deleted or given rights. `sockets`: on which they began to listen, as
    "tcp PORT" or "unix NAME". `passed`: paths at which verification opened files that it had not made, and at which
    nothing is any more; `links`: how many symbolic ones they made. `left`: of `late`, what was in /dev before, and no
    device. `unseen_memory`: they did more than was seen, on a machine where that is seen.
    `altered`: tests that any process changed since verification began, and rewards that another than their writer did.
    `writers`: of rewards, and of files that are other ones since then, or gone, which others opened, where programs
    look that are none of the work; () = not known.
    """

    opened: Mapping[str, int] | None = None
    written: frozenset[str] = frozenset()
    tampered: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    readers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    programs: Mapping[int, WatchProgram] = field(default_factory=dict)
    unseen_memory: bool = False
    late: frozenset[str] = frozenset()
    moved: bool = False
    made: frozenset[int] = frozenset()
    changed: bool = False
    sockets: tuple[str, ...] = ()
    passed: frozenset[str] = frozenset()
    links: int = 0
    left: frozenset[str] = frozenset()
    altered: tuple[str, ...] = ()
    writers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Sight:
    """A view. `seen`: once the block of `watching` has ended; until then, and where it is not known, nothing is."""

    seen: Seen = field(default_factory=lambda: Seen(unseen_memory=True))


class _Watcher:
    """The running program. A thread reads its answers; any event loop may ask. All methods but `ask` block."""

    def __init__(self, run_id: str) -> None:
        """Returns when it is ready. Raises OSError, TimeoutError, docker.errors.DockerException."""
        self._program: RootProgram = start(MODULE, run_id)
        self._ready: Future[dict[str, Any]] = Future()
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self.ended = False
        self._complaint = ""
        threading.Thread(target=self._read, name="watcher", daemon=True).start()
        try:
            ready = self._ready.result(READY_SEC)
        except (OSError, TimeoutError):
            self.close()
            raise
        if why := ready.get("untraced"):
            _tell(
                "the memory of verifications cannot be watched (%s): rewarded trials are verified a second time "
                "without the processes that their policies left",
                str(why),
            )

    async def ask(self, kind: str, name: str, seconds: float, **more: object) -> dict[str, Any]:
        """Return the answer. Raises OSError when it refuses, or has ended; TimeoutError."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._waiting[name] = future
        try:
            await call(self.send, kind, name, **more)
            async with asyncio.timeout(seconds):
                answer = await asyncio.wrap_future(future)
        finally:
            with self._lock:
                self._waiting.pop(name, None)
        if failed := answer.get("failed"):
            raise OSError(str(failed))
        return answer

    def send(self, kind: str, name: str, **more: object) -> None:
        """Ask without waiting for the answer. Raises OSError when it has ended."""
        with self._sending:
            if self.ended:
                raise OSError(self._complaint)
            self._program.send(json.dumps({kind: name, **more}).encode() + b"\n")

    def _read(self) -> None:
        text = bytearray()
        with contextlib.suppress(OSError):
            for chunk in self._program.chunks():
                text += chunk
                if b"\n" in chunk:
                    *lines, rest = text.split(b"\n")
                    text = bytearray(rest)
                    for line in lines:
                        self._take(bytes(line))
                if len(text) > MOST_BYTES:
                    break
        self._complaint = f"the watcher ended: {one_line(self._complaint)}".rstrip(": ")
        with self._lock:
            self.ended = True
            for future in (self._ready, *self._waiting.values()):
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(OSError(self._complaint))
        self.close()

    def _take(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self._complaint = (self._complaint + line.decode(errors="replace") + " ")[-500:]
            return
        with self._lock:
            future = self._ready if "ready" in answer else self._waiting.get(str(answer.get("id")))
        if future is not None:
            with contextlib.suppress(InvalidStateError):  # it is not waited for any more
                future.set_result(answer)

    def close(self) -> None:
        self._program.close()


_watchers: dict[tuple[int, str | None], _Watcher] = {}  # by process and DOCKER_HOST
_failed: dict[tuple[int, str | None], tuple[float, str]] = {}  # when and why it did not start
_starting = threading.Lock()


def _watcher(run_id: str) -> _Watcher:
    """The program that runs, started if there is none. Blocking. Raises as `_Watcher` does."""
    key = os.getpid(), os.environ.get("DOCKER_HOST")
    with _starting:
        if (found := _watchers.get(key)) is not None and not found.ended:
            return found
        when, why = _failed.get(key, (-AGAIN_SEC, ""))
        if time.monotonic() - when < AGAIN_SEC:
            raise OSError(why)
        try:
            made = _watchers[key] = _Watcher(run_id)
        except _FAILURES as error:
            _failed[key] = time.monotonic(), _reason(error)
            raise
    atexit.register(made.close)
    return made


@contextlib.asynccontextmanager
async def watching(
    container: str,
    run_id: str,
    kept: Collection[int],
    own: Callable[[str], bool],
    tests: Collection[str] = (),
    began: Callable[[], float] = float,
) -> AsyncIterator[Sight]:
    """Watch the container while the block runs. `kept`: processes of the image, as the daemon's machine numbers them.

    `own`: whether a path of verification's own folders may be there when the block begins; others were put there.
    `tests`: paths of its tests; `began`: time of its last command.

    Where that is impossible, what is seen is not known, and the log says so once.
    """
    sight, name, begun, put = Sight(), secrets.token_hex(8), None, list[str]()
    async with contextlib.AsyncExitStack() as undo:
        try:
            whose = await call(_whose, container, kept)  # fails where the daemon's processes are not of this machine
            watcher = await call(_watcher, run_id)
            undo.callback(_forget, watcher, name)
            answer = await watcher.ask("begin", name, ROOM_SEC + READY_SEC, room=ROOM_SEC, **whose)
            put += [path for path in map(str, answer.get("own") or ()) if not own(path)][:MOST_PUT]
            begun = watcher
        except _FAILURES as error:
            _not_watched(error)
        yield sight
        if begun is not None:
            undo.pop_all()
            try:
                seen = _parsed((await begun.ask("end", name, END_SEC, tests=[*tests], since=began())).get("seen"))
                sight.seen = replace(seen, tampered=(*put, *seen.tampered))
            except _FAILURES as error:
                _not_watched(error)


async def look(container: str, run_id: str, kept: Collection[int], seconds: float) -> tuple[Process, ...]:
    """Return the processes of the policy, and which of them run within `seconds`; () where that is not known."""
    try:
        whose, name = await call(_whose, container, kept), secrets.token_hex(8)
        watcher = await call(_watcher, run_id)
        answer = await watcher.ask("look", name, READY_SEC + seconds, during=seconds, **whose)
        return _processes(answer.get("processes"))
    except _FAILURES as error:
        _not_watched(error)
        return ()


def _forget(watcher: _Watcher, name: str) -> None:
    """End a watch whose answer does not matter."""

    def end() -> None:
        with contextlib.suppress(OSError):
            watcher.send("end", name, tests=[], since=0)

    asyncio.get_running_loop().run_in_executor(None, end)


def _whose(container: str, kept: Collection[int]) -> dict[str, object]:
    """The container as a request names it."""
    first, one = pid_of(container), noted(container)
    return {"pid": first, "kept": sorted(kept), "shell": one and one.shell}


def _parsed(found: Any) -> Seen:
    """Raises ValueError."""
    try:
        readers = {str(path): tuple(map(int, pids)) for path, pids in found["readers"].items()}
        return Seen(
            None if found["overflow"] else {path: place for place, path in enumerate(readers)},
            frozenset(map(str, found["written"])),
            tuple(map(str, found["tampered"])),
            _processes(found["processes"]),
            readers=readers,
            programs={
                int(pid): WatchProgram(int(one["parent"]), str(one["cwd"]), _texts(one["words"]), _texts(one["ran"]))
                for pid, one in found["programs"].items()
            },
            unseen_memory=bool(found["unseen"]),
            late=frozenset(map(str, found["late"])),
            moved=bool(found["moved"]),
            made=frozenset(map(int, found["made"])),
            changed=bool(found["changed"]),
            sockets=tuple(map(str, found["sockets"])),
            passed=frozenset(map(str, found["passed"])),
            links=int(found["links"]),
            left=frozenset(map(str, found["left"])),
            altered=_texts(found["altered"]),
            writers={str(path): tuple(map(int, pids)) for path, pids in found["writers"].items()},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the watcher's answer is malformed: {error!r}") from error


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(map(str, found))


def _processes(found: Any) -> tuple[Process, ...]:
    """Raises ValueError."""
    try:
        return tuple(
            Process(
                str(one["name"]),
                tuple(map(int, one["ports"])),
                bool(one["ran"]),
                tuple(map(str, one["writes"])),
                pid=int(one["pid"]),
                sockets=tuple(map(str, one["sockets"])),
                busy=bool(one["busy"]),
                holds=bool(one["holds"]),
            )
            for one in found
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"the watcher's answer is malformed: {error!r}") from error


def _reason(error: BaseException) -> str:
    text = error.explanation if isinstance(error, APIError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _not_watched(error: BaseException) -> None:
    _tell(
        "verifications cannot be watched (%s): each rewarded trial that changed what its task does not ask for is "
        "verified a second time; run as root or with a Docker daemon of this machine",
        _reason(error),
    )


def _tell(text: str, why: str) -> None:
    """Log a warning, once."""
    if text not in _told:
        _told.add(text)
        _log.warning(text, one_line(why))
