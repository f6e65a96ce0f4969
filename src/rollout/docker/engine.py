"""The process's one Docker Engine client, and the threads that wait for it."""

import asyncio
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import docker
from docker.utils import kwargs_from_env

REQUEST_TIMEOUT_SEC = 120
_CALLS = ThreadPoolExecutor(32, thread_name_prefix="docker-call")
_REMOVALS = ThreadPoolExecutor(4, thread_name_prefix="docker-remove")  # a removal must not starve a start
_cpu_seconds: list[float] = [0.0]


def engine() -> docker.APIClient:
    """The client for the daemon that DOCKER_HOST names now; raises docker.errors.DockerException when there is none."""
    return _client(os.environ.get("DOCKER_HOST"))


@functools.cache
def _client(_host: str | None) -> docker.APIClient:
    return docker.APIClient(
        version="auto", timeout=REQUEST_TIMEOUT_SEC, num_pools=4, max_pool_size=64, **kwargs_from_env()
    )


async def call[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking Engine call in a thread. Cancelling the wait does not undo the call."""
    work = functools.partial(_timed, functools.partial(function, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(_CALLS, work)


async def call_removal[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """As `call`, in the few threads kept for removals."""
    work = functools.partial(_timed, functools.partial(function, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(_REMOVALS, work)


def client_cpu_seconds() -> float:
    """CPU time so far of this process's Engine calls."""
    return _cpu_seconds[0]


def _timed[R](work: Callable[[], R]) -> R:
    started = time.thread_time()
    try:
        return work()
    finally:
        _cpu_seconds[0] += time.thread_time() - started
