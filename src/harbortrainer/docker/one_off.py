"""Runs one script in a container of its own, which is removed then. Blocking."""

from collections.abc import Mapping, Sequence
from typing import Any

from docker.types import LogConfig

from harbortrainer.docker.cleaning import labels, remove_container
from harbortrainer.docker.daemon import engine

START_SEC = 60  # for a program's help to be printed
_WORDS = 200
_KILLED = 137


def run_once(
    image: str, script: str, arguments: Sequence[str], run_id: str, seconds: int, user: str | None = None, **host: Any
) -> tuple[int, str]:
    """Exit status and output of `script`, run by sh. `user`: None = the image's; `host`: docker-py's host_config.

    Raises docker.errors.DockerException; requests.RequestException, also when it takes over `seconds`.
    """
    client = engine()
    log = LogConfig(type="json-file", config={"max-size": "1m"})
    made = client.create_container(
        image,
        entrypoint=["sh", "-c", script, "sh"],
        command=list(arguments),
        user=user,
        labels=labels(run_id),
        host_config=client.create_host_config(**host, log_config=log),
    )["Id"]
    try:
        client.start(made)
        status = client.wait(made, timeout=seconds)["StatusCode"]
        return status, client.logs(made).decode(errors="replace")
    finally:
        remove_container(made)


def start_problem(image: str, command: str, mounts: Sequence[Mapping[str, Any]], memory_mb: int) -> str:
    """Whether a mounted program starts in an image: processor, C library and memory must suit it.

    Returns why `command` failed, in one line; "" = it did not. `memory_mb`: 0 = no limit. Raises as `run_once` does.
    """
    binds = [f"{mount['source']}:{mount['target']}:ro" for mount in mounts]
    limits = {"network_mode": "none", "binds": binds, "mem_limit": memory_mb << 20 or None, "pids_limit": 512}
    status, output = run_once(image, command, (), "doctor", START_SEC, **limits)
    if status == _KILLED:
        return f"it was killed with {memory_mb} MB of memory"
    return (" ".join(output.split())[-_WORDS:] or f"exit status {status}") if status else ""
