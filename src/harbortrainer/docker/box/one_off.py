"""Containers for one moment: to run a script, or to read files of an image. All functions block."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from docker.types import LogConfig

from harbortrainer.docker.daemon import engine, remove_container
from harbortrainer.docker.keeping.ownership import labels

START_SEC = 60  # for a program's help to be printed
_WORDS = 200
_KILLED = 137


@contextlib.contextmanager
def one_off(
    image: str, entrypoint: Sequence[str], run_id: str, *, user: str | None = None, **host: Any
) -> Iterator[str]:
    """Yield the ID of a container that is created, not started, and removed after the block.

    `user`: None = the image's; `host`: docker-py's host_config. Raises docker.errors.ImageNotFound, DockerException.
    """
    client = engine()
    config = client.create_host_config(**host)
    made = client.create_container(
        image, entrypoint=list(entrypoint), command=[], user=user, labels=labels(run_id), host_config=config
    )["Id"]
    try:
        yield made
    finally:
        remove_container(made)


def run_once(
    image: str, script: str, arguments: Sequence[str], run_id: str, seconds: int, user: str | None = None, **host: Any
) -> tuple[int, str]:
    """Exit status and output of `script`, run by sh in a container of its own; `user` and `host` as of `one_off`.

    Raises docker.errors.DockerException; requests.RequestException, also when it takes over `seconds`.
    """
    client, log = engine(), LogConfig(type="json-file", config={"max-size": "1m"})
    with one_off(image, ["sh", "-c", script, "sh", *arguments], run_id, user=user, log_config=log, **host) as made:
        client.start(made)
        status = client.wait(made, timeout=seconds)["StatusCode"]
        return status, client.logs(made).decode(errors="replace")


def start_problem(image: str, command: str, mounts: Sequence[Mapping[str, Any]], memory_mb: int) -> str:
    """Return whether a mounted program starts in an image: processor, C library and memory must suit it.

    Returns why `command` failed, in one line; "" = it did not. `memory_mb`: 0 = no limit. Raises as `run_once` does.
    """
    binds = [f"{mount['source']}:{mount['target']}:ro" for mount in mounts]
    limits = {"network_mode": "none", "binds": binds, "mem_limit": memory_mb << 20 or None, "pids_limit": 512}
    status, output = run_once(image, command, (), "doctor", START_SEC, **limits)
    if status == _KILLED:
        return f"it was killed with {memory_mb} MB of memory"
    return (" ".join(output.split())[-_WORDS:] or f"exit status {status}") if status else ""
