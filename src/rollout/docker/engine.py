"""The process's one Docker Engine client, and the threads that wait for it."""

import asyncio
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import docker
from docker.utils import kwargs_from_env

REQUEST_TIMEOUT_SEC = 120
_CALLS = ThreadPoolExecutor(32, thread_name_prefix="docker-call")
_REMOVALS = ThreadPoolExecutor(4, thread_name_prefix="docker-remove")  # a removal must not starve a start


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
    return await asyncio.get_running_loop().run_in_executor(_CALLS, functools.partial(function, *args, **kwargs))


async def call_removal[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """As `call`, in the few threads kept for removals."""
    return await asyncio.get_running_loop().run_in_executor(_REMOVALS, functools.partial(function, *args, **kwargs))
