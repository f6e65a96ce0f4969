"""Containers for one moment: to read files of an image, or to run a script. All functions block."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from harbortrainer.docker.daemon import engine, remove_container
from harbortrainer.docker.keeping.ownership import labels


@contextlib.contextmanager
def one_off(image: str, run_id: str, entrypoint: Sequence[str] = ("true",), **host: Any) -> Iterator[str]:
    """Yield the ID of a container that is created, not started, and removed after the block.

    `host`: docker-py's host_config. Raises docker.errors.ImageNotFound, DockerException.
    """
    client = engine()
    config = client.create_host_config(**host)
    made = client.create_container(
        image, entrypoint=list(entrypoint), command=[], labels=labels(run_id), host_config=config
    )["Id"]
    try:
        yield made
    finally:
        remove_container(made)
