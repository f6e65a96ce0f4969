"""Is there a Docker daemon that can carry this run? Asked once, before anything is spent."""

import os
import resource
import shutil

import docker
import requests
from docker.errors import DockerException

from src.errors import EnvironmentFault
from src.rollout.docker.engine import engine

MIN_API = (1, 40)  # Docker 19.03
MIN_FREE_BYTES = 2 * 1024**3
_DESCRIPTORS_BESIDE_ENVS = 256
_DESCRIPTORS_AN_ENV = 8


def check_docker(n_parallel_envs: int) -> None:
    """Raise EnvironmentFault with the cause and its fix in one line, or return. Blocking."""
    client = _connect()
    if tuple(int(part) for part in client.api_version.split(".")) < MIN_API:
        raise EnvironmentFault(f"Docker API {client.api_version} is too old: update Docker to 19.03 or newer")
    info = client.info()
    if info.get("OSType") != "linux":
        raise EnvironmentFault(f"the Docker daemon runs {info.get('OSType')} containers: switch it to Linux containers")
    _check_disk(info.get("DockerRootDir", ""), remote=not client.base_url.startswith("http+docker"))
    _check_descriptors(n_parallel_envs)


def _connect() -> docker.APIClient:
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


def _check_disk(root: str, *, remote: bool) -> None:
    if remote or not os.path.isdir(root):
        return
    free = shutil.disk_usage(root).free
    if free < MIN_FREE_BYTES:
        raise EnvironmentFault(
            f"only {free / 1024**3:.1f} GiB free on Docker's disk ({root}), {MIN_FREE_BYTES >> 30} GiB needed: "
            "free some space (docker system df shows what Docker holds)"
        )


def _check_descriptors(n_parallel_envs: int) -> None:
    needed = _DESCRIPTORS_BESIDE_ENVS + _DESCRIPTORS_AN_ENV * n_parallel_envs
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise EnvironmentFault(
            f"n_parallel_envs={n_parallel_envs} needs {needed} open files, the limit is {hard}: raise it (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
