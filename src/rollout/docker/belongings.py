"""What on the daemon carries our label: containers, networks, volumes, images. Nothing else is ever looked at."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from http.client import CONFLICT
from typing import Any

from docker.errors import APIError, ImageNotFound, NotFound

from src.rollout.docker.engine import engine
from src.rollout.docker.owner import BUILT, LABEL

_OURS = {"label": f"{LABEL}=1"}


@dataclass(frozen=True, slots=True)
class Belonging:
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


def belongings() -> Iterator[Belonging]:
    """All that is ours, in an order in which it can be removed. Blocking. Raises docker.errors.DockerException."""
    for container in engine().containers(all=True, filters=_OURS):
        name = container["Names"][0].lstrip("/") if container["Names"] else container["Id"][:12]
        yield Belonging("container", name, container["Labels"], container["Created"], container["Id"])
    for network in engine().networks(filters=_OURS):
        yield Belonging("network", network["Name"], network["Labels"], seconds(network["Created"]), network["Id"])
    for volume in engine().volumes(filters=_OURS)["Volumes"] or ():
        yield Belonging("volume", volume["Name"], volume["Labels"], seconds(volume.get("CreatedAt", "")))
    for image in engine().images(filters=_OURS):
        for name in [tag for tag in image["RepoTags"] or () if tag != "<none>:<none>"] or [image["Id"]]:
            yield Belonging("image", name, image["Labels"], _built(image), image["Id"])


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
