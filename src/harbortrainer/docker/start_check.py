"""Whether a mounted program starts in an image: the processor, the C library and the memory must suit it. Blocking."""

from collections.abc import Mapping, Sequence
from typing import Any

from harbortrainer.docker.cleaning import labels, remove_container
from harbortrainer.docker.daemon import engine

START_SEC = 60  # for its help to be printed
_WORDS = 200
_KILLED = 137


def start_problem(image: str, command: str, mounts: Sequence[Mapping[str, Any]], memory_mb: int) -> str:
    """Run `command` in a container of the image, without a network. Why it failed, in one line; "" = it did not.

    `memory_mb`: 0 = no limit. Raises docker.errors.DockerException, requests.RequestException.
    """
    client = engine()
    host = client.create_host_config(
        network_mode="none",
        binds=[f"{mount['source']}:{mount['target']}:ro" for mount in mounts],
        mem_limit=memory_mb << 20 or None,
        pids_limit=512,
    )
    made = client.create_container(
        image, entrypoint=["sh", "-c", command], command=[], labels=labels("doctor"), host_config=host
    )["Id"]
    try:
        client.start(made)
        status = client.wait(made, timeout=START_SEC)["StatusCode"]
        words = " ".join(client.logs(made, tail=5).decode(errors="replace").split())[-_WORDS:]
    finally:
        remove_container(made)
    if status == _KILLED:
        return f"it was killed with {memory_mb} MB of memory"
    return (words or f"exit status {status}") if status else ""
