"""Free space on the disk where the containers' writes go."""

import functools
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from src.rollout.docker.engine import engine
from src.rollout.docker.owner import running

LOCAL_SEC, REMOTE_SEC = 2.0, 15.0


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes. `free`: for who is not root, so that it is told early rather than late."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Gauge:
    """`read` blocks; None = not known now. `every_sec`: how often its cost allows."""

    read: Callable[[], Space | None]
    every_sec: float


def gauge(run_id: str) -> Gauge:
    """Of the daemon's own folder where we see it; else of the disk below a running container of the run."""
    client = engine()
    root = client.info().get("DockerRootDir", "")
    if client.base_url.startswith("http+docker") and os.path.isdir(root):
        return Gauge(functools.partial(_of_folder, root), LOCAL_SEC)
    return Gauge(functools.partial(_below_a_container, run_id), REMOTE_SEC)


def _of_folder(root: str) -> Space:
    usage = shutil.disk_usage(root)
    return Space(usage.free, usage.total)


def _below_a_container(run_id: str) -> Space | None:
    client = engine()
    ours = client.containers(filters=running(run_id))
    for container in random.sample(ours, min(1, len(ours))):  # one may not answer, or lie
        job = client.exec_create(container["Id"], ["df", "-Pk", "/"], user="root")
        words = client.exec_start(job["Id"]).decode(errors="replace").split("\n")[1:2]
        numbers = [int(word) * 1024 for word in words[0].split()[1:4] if word.isdigit()] if words else []
        if len(numbers) == 3:
            return Space(free=numbers[2], total=numbers[0])
    return None
