"""The Docker Engine client of this process, threads that wait for its answers, and a circuit breaker for outages."""

import asyncio
import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import CONFLICT
from pathlib import Path
from typing import Any, override
from urllib.parse import urlsplit

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.types import CancellableStream
from docker.utils import kwargs_from_env

from harbortrainer.docker.box.first_process import end_first, noted
from harbortrainer.errors import EnvironmentFault, one_line

REQUEST_TIMEOUT_SEC = 120
PING_SEC = 10.0
ENDED_SEC = 10  # to see that a container's first process was killed
_PROC = Path("/proc")
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.5, 5.0  # between two pings during an outage
_CALLS = ThreadPoolExecutor(32, thread_name_prefix="docker-call")
_REMOVALS = ThreadPoolExecutor(4, thread_name_prefix="docker-remove")  # a removal must not starve a start
_log = logging.getLogger("harbortrainer")

Ping = Callable[[], str | None]


class _Client(docker.APIClient):
    """A client whose every request has the client's limit; docker-py sends some, as an attach, without one."""

    @override
    def request(self, method: str, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        try:
            return super().request(method, url, *args, **{"timeout": self.timeout} | kwargs)
        except requests.ReadTimeout as error:
            asked = f"{method} {urlsplit(str(url)).path}"
            raise requests.ReadTimeout(f"Docker gave no answer to {asked} in time", request=error.request) from error


def engine(timeout_sec: int = REQUEST_TIMEOUT_SEC) -> docker.APIClient:
    """Return the client for the daemon that DOCKER_HOST names now. Raises docker.errors.DockerException without one.

    `timeout_sec`: for an answer.
    """
    return _client(os.environ.get("DOCKER_HOST"), timeout_sec)


@functools.cache
def _client(_host: str | None, timeout_sec: int) -> docker.APIClient:
    return _opened(timeout_sec)


def _opened(timeout_sec: int = REQUEST_TIMEOUT_SEC) -> docker.APIClient:
    return _Client(version="auto", timeout=timeout_sec, **kwargs_from_env())


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Raise EnvironmentFault, in one line, for a request of the block that the daemon leaves without an answer."""
    try:
        yield
    except requests.RequestException as error:
        raise EnvironmentFault(
            f"Docker stopped answering: {one_line(error)}; restart it (sudo systemctl restart docker)"
        ) from error


@contextlib.contextmanager
def engine_until(stop: threading.Event) -> Iterator[docker.APIClient]:
    """Yield a client of its own whose connections are cut once `stop` is set: the daemon gives up what they asked for.

    Set it afterwards in any case, since a thread waits for it.
    """

    def cut(response: requests.Response) -> None:
        stop.wait()
        with contextlib.suppress(OSError, AttributeError, DockerException):  # it has ended, or SSH carries it
            CancellableStream(iter(()), response).close()

    def watched(response: requests.Response, *_: Any, **__: Any) -> None:
        threading.Thread(target=cut, args=(response,), name="docker-stop", daemon=True).start()

    with contextlib.closing(_opened()) as client:
        client.hooks["response"].append(watched)
        yield client


async def call[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking Engine call in a thread. Cancelling the wait does not undo the call."""
    return await asyncio.get_running_loop().run_in_executor(_CALLS, functools.partial(function, *args, **kwargs))


async def call_removal[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call as `call` does, in the few threads kept for removals."""
    return await asyncio.get_running_loop().run_in_executor(_REMOVALS, functools.partial(function, *args, **kwargs))


async def shared[T](running: dict[str, asyncio.Task[T]], key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Get result of `work`, which runs once for all who ask for `key` meanwhile; cancelling one leaves it running."""
    task = running.get(key)
    if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
        running[key] = task = asyncio.create_task(work())
    return await asyncio.shield(task)


def first_process(inspected: Mapping[str, Any], proc: Path = _PROC) -> int:
    """Return a container's, as this machine numbers it. Raises OSError where the daemon's processes are elsewhere."""
    pid = inspected["State"]["Pid"]
    # of the container, or of the one whose network it shares; its own ID may be in no mount (cgroup version 2)
    mounted = Path(inspected["HostnamePath"]).parent.name
    if f"/containers/{mounted}/" not in (proc / str(pid) / "mountinfo").read_text():
        raise FileNotFoundError(f"process {pid} of this machine is not the container's")
    return pid


def pid_of(container: str) -> int:
    """Return its first process, as this machine numbers it. Raises OSError as `first_process`, DockerException."""
    return one.pid if (one := noted(container)) else first_process(engine().inspect_container(container))


def remove_container(name: str) -> None:
    """Kill and remove a container with its volumes; return when it is gone. Blocking."""
    with contextlib.suppress(NotFound):
        if end_first(name):  # cheaper than by Docker, which starts a program to kill it
            with contextlib.suppress(requests.RequestException):
                engine().wait(name, timeout=ENDED_SEC)
        try:
            engine().remove_container(name, force=True, v=True)
        except APIError as error:
            if error.status_code != CONFLICT:  # its removal is already in progress
                raise
            engine().wait(name, REQUEST_TIMEOUT_SEC, condition="removed")


def ping_docker() -> str | None:
    """Return why the daemon does not answer; None = it does. Blocking, within twice PING_SEC.

    A daemon whose networks are deadlocked (20.10) answers pings, and starts and removes no container any more.
    """
    try:
        client = engine()
        for path in ("/_ping", "/networks"):
            client.get(f"{client.base_url}{path}", timeout=PING_SEC).raise_for_status()
    except (DockerException, requests.RequestException) as error:
        return one_line(error)
    return None


class Daemon:
    """A run's circuit breaker: no trial starts while the daemon is away.

    `outages`: how many have begun; a trial during which one began was hit by it.
    """

    def __init__(self, limit_sec: float, ping: Ping = ping_docker) -> None:
        """`limit_sec`: longest outage that is waited for."""
        self.outages = 0
        self._limit_sec = limit_sec
        self._ping = ping
        self._answers = asyncio.Event()
        self._answers.set()
        self._fault: EnvironmentFault | None = None
        self._asking = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Return when the daemon answers. Raises EnvironmentFault after an outage longer than the limit."""
        await self._answers.wait()
        if self._fault is not None:
            raise self._fault

    async def suspect(self) -> None:
        """Call it after a fault of an environment: pings the daemon; an outage begins if it does not answer."""
        async with self._asking:
            if not self._answers.is_set() or self._fault is not None:
                return
            if (reason := await asyncio.to_thread(self._ping)) is not None:
                self.outages += 1
                self._answers.clear()
                _log.warning("Docker does not answer (%s); no trial starts until it does", reason)
                self._watch = asyncio.create_task(self._until_back(reason))

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def _until_back(self, reason: str | None) -> None:
        began, pause = time.monotonic(), FIRST_PAUSE_SEC
        while reason is not None and (away := time.monotonic() - began) < self._limit_sec:
            await asyncio.sleep(min(pause, self._limit_sec - away))
            pause = min(2 * pause, LONGEST_PAUSE_SEC)
            reason = await asyncio.to_thread(self._ping)
        if reason is None:
            _log.warning("Docker is back after %.0f s; trials start again", time.monotonic() - began)
        else:
            self._fault = EnvironmentFault(
                f"Docker did not answer for {self._limit_sec:g} s ({reason}): start it (sudo systemctl start docker), "
                "or let the run wait longer (outage_limit_sec)"
            )
        self._answers.set()
