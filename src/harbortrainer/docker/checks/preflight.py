"""What the Docker daemon can carry: checks, once before a run, of version, disk, memory, CPUs, networks and tools."""

import contextlib
import math
import os
import re
import resource
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import DockerException
from harbor.models.task.config import EnvironmentConfig, NetworkMode, TaskConfig
from harbor.utils.env import get_required_host_vars

from harbortrainer.commands import command
from harbortrainer.docker.box.compose import COMPOSE
from harbortrainer.docker.daemon import answered, engine
from harbortrainer.docker.images.builds import NO_BUILDKIT, buildkit_command, buildkit_feature, is_here, printed
from harbortrainer.docker.images.image import task_reference
from harbortrainer.durable.facts import fact
from harbortrainer.errors import EnvironmentFault, UserError
from harbortrainer.harbor import task_config

MIN_API = (1, 40)  # Docker 19.03
MIN_FREE_BYTES = 2 * 1024**3
DESCRIPTORS_BESIDE_ENVS = 256
DESCRIPTORS_AN_ENV = 8
_MIB = 1024**2
_VARIABLE = re.compile(r"(?<!\$)\$(?:\{(\w+)\}|([A-Za-z_]\w*))")  # of a compose file, without a default
_LOG_MOUNT = re.compile(r"(?:ENV|HOST)_(?:VERIFIER_LOGS|AGENT_LOGS|ARTIFACTS)_PATH")  # Harbor sets these, too


@dataclass(frozen=True, slots=True)
class TaskNeeds:
    """What one trial of a task needs; `cpus`, `memory_mb`: 0 = no limit;

    `buildkit`: the construct for which the CLI has to build, None = none. `hosts_listed`: a phase may reach some hosts
    alone. `variables`: of the environment, without a default.
    """

    name: str
    path: Path
    cpus: float
    memory_mb: int
    compose: bool = False
    buildkit: str | None = None
    gpus: int = 0
    hosts_listed: bool = False
    variables: tuple[str, ...] = ()


@dataclass(slots=True)
class Findings:
    """Lines, each with its fix. Errors stop a run."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@answered()
def check_docker(
    tasks: Sequence[Path], n_containers: int, environment_kwargs: Mapping[str, Any], beside_mb: int = 0
) -> list[str]:
    """Check that `n_containers` environments of these tasks can run at once. Returns warnings, one line each. Blocking.

    `beside_mb`: memory of an agent in the container.
    Raises EnvironmentFault with all that cannot work, one line each with its fix.
    """
    client = connect()
    findings = Findings()
    info = client.info()
    _check_daemon(client.api_version, info, findings)
    _check_disk(info.get("DockerRootDir", ""), client.base_url, findings)
    _check_descriptors(n_containers, findings)
    needs = [task_needs(task, environment_kwargs, beside_mb) for task in tasks]
    check_memory(needs, n_containers, info["MemTotal"], findings)
    check_cpus(needs, info["NCPU"], findings)
    check_gpus(needs, info.get("Runtimes") or {}, findings)
    check_variables(needs, findings)
    check_compose_variables(needs, findings)
    check_tools([task for task in needs if task.compose or _is_to_build(task)], findings)
    check_networks(needs, findings)
    if findings.errors:
        raise EnvironmentFault("\n".join(findings.errors))
    return findings.warnings


def connect() -> docker.APIClient:
    """Return the client of a daemon that answers. Blocking. Raises EnvironmentFault: cause and fix in one line."""
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
    if tuple(map(int, api_version.split("."))) < MIN_API:
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
            f"({command('doctor clean')}; docker system df shows what Docker holds)"
        )


def _check_descriptors(n_containers: int, findings: Findings) -> None:
    needed = DESCRIPTORS_BESIDE_ENVS + DESCRIPTORS_AN_ENV * n_containers
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


def check_memory(needs: Sequence[TaskNeeds], n: int, total: int, findings: Findings) -> None:
    """`total`: the daemon's bytes."""
    have = total // _MIB
    if too_large := [task for task in needs if task.memory_mb > have]:
        findings.errors.append(
            f"{_named(too_large)}: memory_mb={max(task.memory_mb for task in too_large)}, Docker has {have} MiB: "
            f"run on a larger machine, set environment_kwargs.override_memory_mb, or {_leave_out(too_large)}"
        )
    mean = sum(task.memory_mb for task in needs) / max(1, len(needs))
    if not too_large and mean * n > have:
        findings.warnings.append(
            f"{n} environments at once may take {mean * n:.0f} MiB of memory ({mean:.0f} each on average), Docker has "
            f"{have} MiB: lower n_parallel_envs or environment_kwargs.override_memory_mb if containers are killed"
        )


def check_cpus(needs: Sequence[TaskNeeds], have: int, findings: Findings) -> None:
    too_many = [task for task in needs if task.cpus > have]
    if refused := [task for task in too_many if task.compose]:  # the Engine API's quota may be more, compose's not
        findings.errors.append(
            f"{_named(refused)}: cpus={max(task.cpus for task in refused):g}, Docker has {have}: "
            f"run on a larger machine, set environment_kwargs.override_cpus, or {_leave_out(refused)}"
        )
    if slow := [task for task in too_many if not task.compose]:
        findings.warnings.append(
            f"{_named(slow)}: cpus={max(task.cpus for task in slow):g}, Docker has {have}: it will be slower"
        )


def check_tools(needs: Sequence[TaskNeeds], findings: Findings) -> None:
    """Check the docker CLI and its plugins, for the tasks that need them."""
    if (composed := [task for task in needs if task.compose]) and not printed("docker", "compose", "version"):
        findings.errors.append(
            f"{_named(composed)}: docker-compose.yaml needs the docker CLI with its compose plugin: install it"
        )
    if (built := [task for task in needs if task.buildkit]) and not buildkit_command():
        findings.errors.append(f"{_named(built)}: the Dockerfile uses {built[0].buildkit}: {NO_BUILDKIT}")


def check_networks(needs: Sequence[TaskNeeds], findings: Findings) -> None:
    """Check that Harbor can take the network from what Compose starts, for the tasks that ask for it."""
    modes = ((task, network_modes(task_config(task.path))) for task in needs if task.compose)
    if not (closed := [task for task, asked in modes if NetworkMode.NO_NETWORK in asked]):
        return
    from harbor.environments.docker.docker import DockerEnvironment  # slow to import

    if not DockerEnvironment._egress_control_kernel_support():  # it looks once a process
        findings.errors.append(
            f"{_named(closed)}: network_mode=no-network with docker-compose.yaml: Harbor's probe of nftables, a "
            f"container of alpine, does not run here; set public in task.toml, or {_leave_out(closed)}"
        )


def check_gpus(needs: Sequence[TaskNeeds], runtimes: Collection[str], findings: Findings) -> None:
    """Warn of tasks that want GPUs where Docker lists no NVIDIA runtime; newer versions may do without one."""
    if (tasks := [task for task in needs if task.gpus]) and "nvidia" not in runtimes:
        findings.warnings.append(
            f"{_named(tasks)}: gpus={max(task.gpus for task in tasks)}, Docker lists no NVIDIA runtime, and trials may "
            f"not start: set environment_kwargs.override_gpus=0, or {_leave_out(tasks)}"
        )


def check_variables(needs: Sequence[TaskNeeds], findings: Findings) -> None:
    """Check that this process has the environment variables that tasks take from it: `${NAME}` without a default."""
    lacking: dict[str, list[str]] = {}
    for task in needs:
        for name in task.variables:
            if name not in os.environ:
                lacking.setdefault(name, []).append(task.name)
    findings.errors += [
        f"{name} is not set in the environment, from where these tasks take it (task.toml): export it, or leave them "
        f"out: tasks_exclude={','.join(names)}"
        for name, names in lacking.items()
    ]


def _variables(config: TaskConfig) -> list[str]:
    verifiers = [config.verifier, *(step.verifier for step in config.steps or ())]
    given = [part.env for part in (*_environments(config), *verifiers) if part is not None]
    return sorted({name for env in given for name, default in get_required_host_vars(env) if default is None})


def check_compose_variables(needs: Sequence[TaskNeeds], findings: Findings) -> None:
    """Warn of variables that compose files take from where nothing sets them; CPUS, MEMORY: Harbor, from task.toml."""
    lacking: dict[str, list[TaskNeeds]] = {}
    for task in (one for one in needs if one.compose):
        stated = {"CPUS": task.cpus, "MEMORY": task.memory_mb}
        for name in fact(task.path, "compose variables", partial(_compose_variables, task.path)):
            if name not in os.environ and not stated.get(name):
                lacking.setdefault(name, []).append(task)
    for name, tasks in lacking.items():
        fix = {"CPUS": "environment_kwargs.override_cpus=1", "MEMORY": "environment_kwargs.override_memory_mb=2048"}
        findings.warnings.append(
            f"{_named(tasks)}: docker-compose.yaml uses ${{{name}}}, which is not set, and is empty then: "
            f"set {fix.get(name, 'it in the environment')}, or leave out tasks that need it"
        )


def _compose_variables(task_dir: Path) -> list[str]:
    """Names without a default that Harbor does not set, with CPUS and MEMORY."""
    from harbor.environments.docker.compose_env import ComposeInfraEnvVars

    given = {name.upper() for name in ComposeInfraEnvVars.model_fields} - {"CPUS", "MEMORY"}
    given |= {*task_config(task_dir).environment.env}
    lines = (task_dir / "environment" / COMPOSE).read_text(errors="replace").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    used = {braced or bare for braced, bare in _VARIABLE.findall(text)} - given
    return sorted(name for name in used if not _LOG_MOUNT.fullmatch(name))


def _is_to_build(task: TaskNeeds) -> bool:
    """Whether its Dockerfile needs BuildKit and Docker lacks its image."""
    return task.buildkit is not None and not is_here(task_reference(task.path / "environment"))


def _leave_out(tasks: Sequence[TaskNeeds]) -> str:
    return f"leave out what needs it: tasks_exclude={','.join(task.name for task in tasks)}"


def _named(tasks: Sequence[TaskNeeds]) -> str:
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"task {tasks[0].name}{more}"


def task_needs(task_dir: Path, environment_kwargs: Mapping[str, Any], beside_mb: int = 0) -> TaskNeeds:
    """`environment_kwargs`: override_cpus and override_memory_mb go before task.toml, the latter for agent and task.

    Raises UserError, OSError.
    """
    stated = fact(task_dir, "needs", lambda: _stated_needs(task_dir))
    agents, others, own_cpus, own_gpus, listed, variables, compose, buildkit = stated
    cpus = _override(environment_kwargs, "override_cpus") or own_cpus
    memory = _override(environment_kwargs, "override_memory_mb") or max(agents and agents + beside_mb, others)
    given = environment_kwargs.get("override_gpus") is not None
    gpus = int(_override(environment_kwargs, "override_gpus")) if given else own_gpus
    name = task_dir.name
    return TaskNeeds(
        name, task_dir, cpus, int(memory), compose, buildkit, gpus=gpus, hosts_listed=listed, variables=tuple(variables)
    )


def _stated_needs(task_dir: Path) -> list[Any]:
    """Memory of the agent's environment and the most of all, CPUs, GPUs, and the other fields of TaskNeeds."""
    config = task_config(task_dir)
    environments = list(_environments(config))
    most = max(one.memory_mb or 0 for one in environments)
    stated = [config.environment.memory_mb or 0, most, max(float(one.cpus or 0) for one in environments)]
    stated += [max(one.gpus or 0 for one in environments), NetworkMode.ALLOWLIST in network_modes(config)]
    stated.append(_variables(config))
    folder = task_dir / "environment"
    compose, dockerfile = folder / COMPOSE, folder / "Dockerfile"
    if compose.exists():
        return [*stated, True, None]
    built = dockerfile.exists() and not config.environment.docker_image
    feature = buildkit_feature(dockerfile.read_text(errors="replace")) if built else None
    return [*stated, False, feature]


def network_modes(config: TaskConfig) -> set[NetworkMode]:
    """Get those that a task states for its phases and environments; one that states none is public, or as another's."""
    phases = [part for step in config.steps or () for part in (step.agent, step.verifier, step.verifier.environment)]
    parts = [config.environment, config.agent, config.verifier, config.verifier.environment, *phases]
    return {part.network_mode for part in parts if part is not None and part.network_mode is not None}


def _override(environment_kwargs: Mapping[str, Any], name: str) -> float:
    value = environment_kwargs.get(name) or 0
    with contextlib.suppress(TypeError, ValueError):
        if 0 <= float(value) < math.inf:
            return float(value)
    raise UserError(f"environment_kwargs.{name}={value!r}: must be a number, 0 or more")


def _environments(config: TaskConfig) -> Iterator[EnvironmentConfig]:
    """The agent's, and those of separate verifiers."""
    yield config.environment
    for verifier in (config.verifier, *(step.verifier for step in config.steps or ())):
        if verifier is not None and verifier.environment is not None:
            yield verifier.environment
