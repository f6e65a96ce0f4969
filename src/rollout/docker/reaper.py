"""Removal of what dead runs left behind. Only things with our label are ever looked at."""

import contextlib
from collections.abc import Mapping
from http.client import CONFLICT

from docker.errors import APIError, NotFound

from src.rollout.docker.engine import engine
from src.rollout.docker.owner import LABEL, RUN, owner_is_dead


def reap(run_id: str | None = None) -> list[str]:
    """Remove our containers and networks whose owner is dead, and all those of `run_id` when given.

    Blocking, safe to repeat and from an exit or signal handler. Returns the names removed.
    Raises docker.errors.DockerException when the daemon does not answer.
    """
    ours = {"label": f"{LABEL}=1"}
    removed = []
    for container in engine().containers(all=True, filters=ours):
        if _condemned(container["Labels"], run_id):
            remove_container(container["Id"])
            removed.append(container["Names"][0].lstrip("/") if container["Names"] else container["Id"][:12])
    for network in engine().networks(filters=ours):
        if _condemned(network["Labels"], run_id):
            with contextlib.suppress(NotFound):
                engine().remove_network(network["Id"])
            removed.append(network["Name"])
    return removed


def remove_container(name: str) -> None:
    """Kill and remove a container with its volumes. Returns when it is gone, whoever removed it."""
    with contextlib.suppress(NotFound):
        try:
            engine().remove_container(name, force=True, v=True)
        except APIError as error:
            if error.status_code != CONFLICT:  # its removal is already in progress
                raise
            engine().wait(name, condition="removed")


def _condemned(marks: Mapping[str, str], run_id: str | None) -> bool:
    return (run_id is not None and marks.get(RUN) == run_id) or owner_is_dead(marks)
