"""How many environments the daemon's machine has room for: the bound of `n_parallel_envs=auto`."""

import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from harbortrainer.docker.preflight import (
    BUSY_CPUS,
    DESCRIPTORS_AN_ENV,
    DESCRIPTORS_BESIDE_ENVS,
    TaskNeeds,
    connect,
    networks_left,
    task_needs,
)

MEMORY_SHARE = 0.75  # of the machine's memory; the rest is for the daemon, this process, a server
UNLIMITED_MB = 512  # what a task without memory_mb counts
UNLIMITED_CPUS = 1.0
MOST = 1000  # a bridge has room for 1,023 containers
REMOTE = 256  # environments of a sandbox service, whose limits are not known here
_MIB = 1024**2


def docker_capacity(
    tasks: Sequence[Path], environment_kwargs: Mapping[str, Any], beside_mb: int = 0
) -> tuple[int, str]:
    """The most environments of these tasks, and what bounds the number, in words. Blocking.

    `beside_mb`: memory of an agent in the container. Raises EnvironmentFault without a daemon, UserError.
    """
    client = connect()
    info = client.info()
    needs = [task_needs(task, environment_kwargs, beside_mb) for task in tasks]
    networks = None
    if any(task.networks for task in needs):
        bridges = len(client.networks(filters={"driver": "bridge"}))
        networks = networks_left(info.get("DefaultAddressPools") or (), bridges)
    return capacity(needs, info["MemTotal"], info["NCPU"], resource.getrlimit(resource.RLIMIT_NOFILE)[1], networks)


def capacity(
    needs: Sequence[TaskNeeds], memory: int, cpus: int, files: int, networks: int | None = None
) -> tuple[int, str]:
    """`memory`: bytes; `files`: the hard limit on open files; `networks`: that Docker has addresses for."""
    have = int(MEMORY_SHARE * memory / _MIB)
    each = fmean([task.memory_mb or UNLIMITED_MB + task.beside_mb for task in needs] or [UNLIMITED_MB])
    of_cpu = fmean([task.cpus or UNLIMITED_CPUS for task in needs] or [UNLIMITED_CPUS])
    bounds = [
        (MOST, "containers of a network"),
        (int(have / each), f"memory: {have} MiB for environments of {each:.0f} MiB"),
        (int(BUSY_CPUS * cpus / of_cpu), f"processors: {BUSY_CPUS} x {cpus}, for environments of {of_cpu:.1f}"),
    ]
    if files != resource.RLIM_INFINITY:
        bounds.append(((files - DESCRIPTORS_BESIDE_ENVS) // DESCRIPTORS_AN_ENV, f"open files: {files}"))
    if networks is not None and (of_task := max(task.networks for task in needs)):
        bounds.append((networks // of_task, f"networks of compose tasks: {networks} left"))
    least, why = min(bounds, key=lambda bound: bound[0])
    return max(1, least), why
