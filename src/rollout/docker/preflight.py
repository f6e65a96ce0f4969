"""Is there a Docker daemon that can carry this run? Asked once, before anything is spent."""

import os
import resource
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import DockerException

from src.errors import EnvironmentFault
from src.rollout.docker.capacity import Findings, check_cpus, check_memory, check_networks, check_tools
from src.rollout.docker.engine import engine
from src.rollout.docker.images import is_here, task_reference
from src.rollout.docker.task_needs import TaskNeeds, task_needs

MIN_API = (1, 40)  # Docker 19.03
MIN_FREE_BYTES = 2 * 1024**3
_DESCRIPTORS_BESIDE_ENVS = 256
_DESCRIPTORS_AN_ENV = 8


def check_docker(tasks: Sequence[Path], n_containers: int, environment_kwargs: Mapping[str, Any]) -> list[str]:
    """Warnings, a line each, for `n_containers` environments of these tasks at once. Blocking.

    Raises EnvironmentFault with everything that cannot work, a line each with its fix.
    """
    client = connect()
    findings = Findings()
    info = client.info()
    _check_daemon(client.api_version, info, findings)
    _check_disk(info.get("DockerRootDir", ""), client.base_url, findings)
    _check_descriptors(n_containers, findings)
    needs = [task_needs(task, environment_kwargs) for task in tasks]
    check_memory(needs, n_containers, info["MemTotal"], findings)
    check_cpus(needs, n_containers, info["NCPU"], findings)
    bridges = client.networks(filters={"driver": "bridge"}) if any(task.compose for task in needs) else []
    check_networks(needs, n_containers, info.get("DefaultAddressPools") or (), len(bridges), findings)
    check_isolation(needs, findings)
    check_tools([task for task in needs if task.compose or _is_to_build(task)], findings)
    if findings.errors:
        raise EnvironmentFault("\n".join(findings.errors))
    return findings.warnings


def connect() -> docker.APIClient:
    """The client of a daemon that answers. Blocking. Raises EnvironmentFault: the cause and its fix in one line."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if host.startswith("ssh://") or os.environ.get("DOCKER_TLS_VERIFY"):
        raise EnvironmentFault(
            f"DOCKER_HOST={host}: exec sockets need a plain connection; use unix:// (forward it: ssh -L) or tcp://"
        )
    try:
        return engine()
    except (DockerException, requests.RequestException) as error:
        raise EnvironmentFault(_explain(str(error), host)) from error


def _explain(error: str, host: str) -> str:
    socket = host.removeprefix("unix://")
    if "PermissionError" in error or "Permission denied" in error:
        return f"no permission on the Docker socket {socket}: add yourself to its group (sudo usermod -aG docker $USER)"
    if "FileNotFoundError" in error:
        return f"Docker is not running, there is no {socket}: start it (sudo systemctl start docker) or set DOCKER_HOST"
    if "ConnectionRefused" in error or "Connection refused" in error:
        return f"Docker is not running, {host} refuses: start it (sudo systemctl start docker) or set DOCKER_HOST"
    if "too old" in error or "too new" in error:
        return f"the Docker daemon at {host} speaks another API version: update Docker ({error})"
    return f"Docker at {host} cannot be used: {error}"


def _check_daemon(api_version: str, info: Mapping[str, Any], findings: Findings) -> None:
    if tuple(int(part) for part in api_version.split(".")) < MIN_API:
        findings.errors.append(f"Docker API {api_version} is too old: update Docker to 19.03 or newer")
    if (system := info.get("OSType")) != "linux":
        findings.errors.append(f"the Docker daemon runs {system} containers: switch it to Linux containers")


def _check_disk(root: str, base_url: str, findings: Findings) -> None:
    needed = f"{MIN_FREE_BYTES >> 30} GiB needed"
    if not base_url.startswith("http+docker") or not os.path.isdir(root):
        where = base_url if not base_url.startswith("http+docker") else "another system"
        findings.warnings.append(
            f"free space on Docker's disk could not be checked ({root} is on {where}): {needed}, see df there"
        )
        return
    free = shutil.disk_usage(root).free
    if free < MIN_FREE_BYTES:
        findings.errors.append(
            f"only {free / 1024**3:.1f} GiB free on Docker's disk ({root}), {needed}: free some space "
            "(python -m src.doctor clean; docker system df shows what Docker holds)"
        )


def _check_descriptors(n_containers: int, findings: Findings) -> None:
    needed = _DESCRIPTORS_BESIDE_ENVS + _DESCRIPTORS_AN_ENV * n_containers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        findings.errors.append(
            f"n_parallel_envs: {n_containers} environments need {needed} open files, the limit is {hard}: "
            "raise it (ulimit -n) or lower n_parallel_envs"
        )
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def check_isolation(needs: Sequence[TaskNeeds], findings: Findings) -> None:
    """Harbor's own environment cuts networks off by a side container with nftables, where the kernel has them."""
    tasks = [task.name for task in needs if task.compose and task.isolated]
    if not tasks:
        return
    from harbor.environments.docker.docker import DockerEnvironment

    if not DockerEnvironment._egress_control_kernel_support():
        image = DockerEnvironment._EGRESS_CONTROL_KERNEL_PROBE_IMAGE
        findings.errors.append(
            f"task {', '.join(tasks)}: network_mode=no-network with a docker-compose.yaml needs nftables in the Docker "
            f"host's kernel and the image {image}: provide them, or leave the task out"
        )


def _is_to_build(task: TaskNeeds) -> bool:
    """Whether its Dockerfile needs BuildKit and its image is not here yet."""
    return task.buildkit is not None and not is_here(task_reference(task.path / "environment"))
