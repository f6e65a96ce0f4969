"""Labels on everything that we create on a Docker daemon, and the labelled objects. Others are never looked at."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import CONFLICT
from typing import Any

from docker.errors import APIError, ImageNotFound, NotFound

from src.process import PID, lives, this_process
from src.rollout.docker.daemon import engine

LABEL = "harbortrainer"
RUN_ID = "harbortrainer.run_id"
TRIAL = "harbortrainer.trial"
DIGEST = "harbortrainer.digest"
BUILT = "harbortrainer.built"  # an image is shared: these two only tell when it was built, and for which run
BUILT_FOR = "harbortrainer.built-for"


def labels(run_id: str, trial: str = "") -> dict[str, str]:
    """Labels of a container, network or volume of this process."""
    return {LABEL: "1", RUN_ID: run_id, TRIAL: trial} | this_process()


def image_labels(digest: str, run_id: str) -> dict[str, str]:
    """Labels of an image that is built once for all runs."""
    return {LABEL: "1", DIGEST: digest, BUILT: datetime.now(UTC).isoformat(timespec="seconds"), BUILT_FOR: run_id}


def running(run_id: str) -> dict[str, object]:
    """Docker's filter for the running containers that this process started for the run."""
    marks = {LABEL: "1", RUN_ID: run_id} | this_process()
    return {"label": [f"{name}={value}" for name, value in marks.items()], "status": "running"}


def is_left_over(marks: Mapping[str, str], run_id: str | None = None) -> bool:
    """Whether what carries these labels may be removed.

    Its process is dead, or it belongs to the run `run_id` and to no other process that is seen to live.
    """
    if PID not in marks or marks.get(LABEL) != "1":
        return False  # an image that runs share names no process
    alive = lives(marks)
    if alive is False:
        return True
    mine = all(marks.get(name) == value for name, value in this_process().items())
    return run_id is not None and marks.get(RUN_ID) == run_id and (mine or alive is None)


_OURS = {"label": f"{LABEL}=1"}


@dataclass(frozen=True, slots=True)
class OwnedObject:
    """`name`: a container's, network's or volume's; an image's tag, or its ID when it has none."""

    kind: str  # container, network, volume or image
    name: str
    labels: Mapping[str, str]
    created: float = 0.0  # seconds since 1970; 0 = not known
    id: str = ""  # a volume has none

    def remove(self) -> None:
        """Blocking; nothing happens when it is gone. Raises docker.errors.DockerException."""
        with contextlib.suppress(NotFound, ImageNotFound):
            if self.kind == "container":
                remove_container(self.name)
            elif self.kind == "network":
                engine().remove_network(self.id)  # two may have one name
            elif self.kind == "volume":
                engine().remove_volume(self.name)
            else:
                engine().remove_image(self.name)


def owned_objects() -> Iterator[OwnedObject]:
    """All that is ours, in an order in which it can be removed. Blocking. Raises docker.errors.DockerException."""
    for container in engine().containers(all=True, filters=_OURS):
        name = container["Names"][0].lstrip("/") if container["Names"] else container["Id"][:12]
        yield OwnedObject("container", name, container["Labels"], container["Created"], container["Id"])
    for network in engine().networks(filters=_OURS):
        yield OwnedObject("network", network["Name"], network["Labels"], seconds(network["Created"]), network["Id"])
    for volume in engine().volumes(filters=_OURS)["Volumes"] or ():
        yield OwnedObject("volume", volume["Name"], volume["Labels"], seconds(volume.get("CreatedAt", "")))
    for image in engine().images(filters=_OURS):
        for name in [tag for tag in image["RepoTags"] or () if tag != "<none>:<none>"] or [image["Id"]]:
            yield OwnedObject("image", name, image["Labels"], _built(image), image["Id"])


def remove_container(name: str) -> None:
    """Kill and remove a container with its volumes. Returns when it is gone, whoever removed it."""
    with contextlib.suppress(NotFound):
        try:
            engine().remove_container(name, force=True, v=True)
        except APIError as error:
            if error.status_code != CONFLICT:  # its removal is already in progress
                raise
            engine().wait(name, condition="removed")


def _built(image: Mapping[str, Any]) -> float:
    """BuildKit gives an image that comes from its cache the time of the cached one: our label is asked first."""
    return seconds(image["Labels"].get(BUILT, "")) or image["Created"]


def seconds(time: str) -> float:
    """Of Docker's 2026-01-31T10:20:30.123456789+01:00."""
    head, _, tail = time.partition(".")
    zone = tail.lstrip("0123456789") if tail else ""
    try:
        return datetime.fromisoformat(head + zone).timestamp()
    except ValueError:
        return 0.0
