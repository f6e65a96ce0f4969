"""A listening socket inside a container's network namespace, served from this process: it needs no network.

All functions block.
"""

import contextlib
import errno
import functools
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbortrainer.docker.daemon import engine, first_process
from harbortrainer.stopping import daemon_future

BACKLOG = 64
_PROC = Path("/proc")


class ShutOut(RuntimeError):
    """The container keeps the endpoint out: its processes have the port, or its Python does not run."""


class NoPython(ShutOut):
    """Nothing in the container can run the relay."""


def listener_problem() -> str:
    """Return why this process cannot listen inside containers; "" = it can, if the daemon runs on this machine.

    A socket file may lead to another machine's daemon (ssh -L): only `listen_in` finds out.
    """
    if not _may_enter():
        return "this process may not open a socket in a container's network, as root may"
    host = os.environ.get("DOCKER_HOST", "")
    return "" if not host or host.startswith("unix://") else f"DOCKER_HOST={host} is another machine's daemon"


@functools.cache
def _may_enter() -> bool:
    """Whether the kernel lets this process enter a network namespace; asked with its own."""

    def enter() -> None:
        with (_PROC / "self" / "ns" / "net").open() as namespace:
            os.setns(namespace.fileno(), os.CLONE_NEWNET)

    return daemon_future(enter).exception() is None  # a namespace is a thread's own


def listen_in(container: str, port: int) -> socket.socket | None:
    """Return 127.0.0.1:`port` as the container sees it; None = its processes are not on this machine.

    Raises ShutOut when a process of the container has the port, RuntimeError, docker.errors.DockerException.
    """
    inspected = engine().inspect_container(container)
    try:
        return daemon_future(_listen, inspected, port).result()
    except FileNotFoundError:
        return None
    except OSError as error:
        kind = ShutOut if error.errno == errno.EADDRINUSE else RuntimeError
        raise kind(
            f"the agent's endpoint cannot listen at port {port} inside container {container}: {error}"
        ) from error


def _listen(inspected: Mapping[str, Any], port: int) -> socket.socket:
    with (_PROC / str(inspected["State"]["Pid"]) / "ns" / "net").open() as namespace:
        first_process(inspected)
        os.setns(namespace.fileno(), os.CLONE_NEWNET)
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a later phase of the same trial
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        undo.pop_all()
    return listener
