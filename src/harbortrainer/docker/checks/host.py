"""Where a run's environments are: checks before the run, task images, clean-up, a guard of the disk."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import requests
from docker.errors import DockerException

from harbortrainer.config import Auto
from harbortrainer.docker.checks.preflight import check_docker
from harbortrainer.docker.daemon import ping_docker
from harbortrainer.docker.images.image import Image, image_notes, images_of, push_images
from harbortrainer.docker.images.inventory import needs_note
from harbortrainer.docker.images.supply import Window
from harbortrainer.docker.images.window import ImageWindow
from harbortrainer.docker.keeping.cleaning import reap, tidy
from harbortrainer.docker.keeping.disk_guard import guarding_disk
from harbortrainer.docker.network.bridge import open_for
from harbortrainer.stopping import in_daemon_thread

Say = Callable[[str], None]


class EnvironmentHost(Protocol):
    """What a run asks of it; the methods here do nothing."""

    def check(
        self, tasks: Sequence[Path], n_containers: int, environment_kwargs: Mapping[str, Any], beside_mb: int = 0
    ) -> list[str]:
        """Return warnings for the user. `beside_mb`: memory of an agent in the container. Blocking.

        Raises UserError when the host cannot carry the run.
        """
        return []

    def needs(self, tasks: Sequence[Path], at_once: int, ahead: int) -> list[str]:
        """Return lines on what missing images of tasks take. Blocking."""
        return []

    async def build(self, task: Path, run_id: str, prebuilt_only: bool) -> Collection[Image]:
        """Return the images of a task; those that are missing are made. Raises ImageError.

        `prebuilt_only`: build none in place of one that cannot be pulled.
        """
        return ()

    async def push(self) -> None:
        """Push images that were made to the registry of the setting `images`."""

    def window(self, images_gb: float | Auto) -> Window | None:
        """Return what bounds the task images on the disk; None = nothing does. Blocking."""
        return None

    def open_network(self, tasks: Sequence[Path]) -> None:
        """Create what trials of these tasks share as their network; log a line if they can reach the host. Blocking."""

    def tidy(self, run_id: str) -> list[str]:
        """Remove what dead runs and earlier processes of this run left; a line on what was removed. Blocking."""
        return []

    def guard(self, run_id: str) -> AbstractContextManager[None]:
        """Watch the disk while the block runs."""
        return contextlib.nullcontext()

    def reap(self, run_id: str) -> object:
        """Remove all that belongs to the run. Blocking."""

    def ping(self) -> str | None:
        """Return why the host does not answer; None = it does. Blocking."""
        return None


class ServiceHost(EnvironmentHost):
    """A sandbox service: each trial checks, builds and cleans for itself."""


class DockerHost:
    """The daemon of this machine, or of DOCKER_HOST."""

    check = staticmethod(check_docker)
    needs = staticmethod(needs_note)
    open_network = staticmethod(open_for)
    tidy = staticmethod(tidy)
    guard = staticmethod(guarding_disk)
    reap = staticmethod(reap)
    ping = staticmethod(ping_docker)
    build = staticmethod(images_of)
    push = staticmethod(push_images)
    window = ImageWindow


@contextlib.asynccontextmanager
async def cleaned(host: EnvironmentHost, run_id: str, say: Say) -> AsyncIterator[None]:
    """Remove what dead runs left before the block, and this run's containers after it; guard the disk meanwhile."""
    for line in await in_daemon_thread(host.tidy, run_id):
        say(line)
    try:
        with host.guard(run_id):
            yield
    finally:
        try:
            await in_daemon_thread(host.reap, run_id)
        except (DockerException, requests.RequestException):
            say("Docker does not answer, containers of this run may be left; the next run removes them")


def maker(host: EnvironmentHost, run_id: str, prebuilt_only: bool, say: Say) -> Callable[[Path], Awaitable[bool]]:
    """Get function that makes a task's images and says whether one was missing; `say` gets each kind of remark once."""
    noted: set[str] = set()

    async def make(task: Path) -> bool:
        images = await host.build(task, run_id, prebuilt_only)
        for kind, line in image_notes(task.name, images):
            if kind not in noted:
                noted.add(kind)
                say(line)
        return any(image.fresh for image in images)

    return make
