"""A listening socket inside a container's network namespace, served from this process: it needs no network.

All functions block.
"""

import errno
import functools
import os
import socket
import threading
from pathlib import Path

from harbortrainer.docker.daemon import engine

BACKLOG = 64
_PROC = Path("/proc")


class ShutOut(RuntimeError):
    """The container keeps the endpoint out: its processes have the port, or its Python does not run."""


class NoPython(ShutOut):
    """Nothing in the container can run the relay."""


def listener_problem() -> str:
    """Why this process cannot listen inside containers; "" = it can, if the daemon runs on this machine.

    A socket file may lead to another machine's daemon (ssh -L): only `listen_in` finds out.
    """
    if not _may_enter():
        return "this process may not open a socket in a container's network, as root may"
    host = os.environ.get("DOCKER_HOST", "")
    return "" if not host or host.startswith("unix://") else f"DOCKER_HOST={host} is another machine's daemon"


@functools.cache
def _may_enter() -> bool:
    """Whether the kernel lets this process enter a network namespace; asked with its own."""
    allowed: list[bool] = []

    def enter() -> None:
        try:
            with (_PROC / "self" / "ns" / "net").open() as namespace:
                os.setns(namespace.fileno(), os.CLONE_NEWNET)
            allowed.append(True)
        except OSError:
            allowed.append(False)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return allowed[0]


def listen_in(container: str, port: int) -> socket.socket | None:
    """127.0.0.1:`port` as the container sees it; None = its processes are not on this machine.

    Raises ShutOut when a process of the container has the port, RuntimeError, docker.errors.DockerException.
    """
    state = engine().inspect_container(container)
    # of the container, or of the one whose network it shares
    pid, mounted = int(state["State"]["Pid"]), Path(state["HostnamePath"]).parent.name
    made: list[socket.socket | OSError | None] = []
    thread = threading.Thread(target=_listen, args=(pid, mounted, port, made))  # a namespace is a thread's own
    thread.start()
    thread.join()
    if isinstance(problem := made[0], OSError):
        kind = ShutOut if problem.errno == errno.EADDRINUSE else RuntimeError
        raise kind(f"the agent's endpoint cannot listen at port {port} inside container {container}: {problem}")
    return problem


def _listen(pid: int, mounted: str, port: int, made: list[socket.socket | OSError | None]) -> None:
    listener = None
    try:
        with (_PROC / str(pid) / "ns" / "net").open() as namespace:
            if f"/containers/{mounted}/" not in (_PROC / str(pid) / "mountinfo").read_text():
                raise FileNotFoundError(f"process {pid} of this machine is not the container's")
            os.setns(namespace.fileno(), os.CLONE_NEWNET)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a later phase of the same trial
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        made.append(listener)
    except FileNotFoundError:
        made.append(None)
    except OSError as error:
        if listener is not None:
            listener.close()
        made.append(error)
