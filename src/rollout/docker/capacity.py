"""Whether a daemon has what the tasks of a run ask for when many of them run at once."""

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from src.rollout.docker.task_needs import TaskNeeds

BUSY_CPUS = 8  # times what there is: an agent's container mostly waits for the policy
_DEFAULT_NETWORKS = 31  # what the daemon's own address pools hold, the default bridge among them
_CLI_SEC = 30
_MIB = 1024**2


@dataclass(slots=True)
class Findings:
    """One line each, with its fix. Errors stop a run."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check_memory(needs: Sequence[TaskNeeds], n: int, total: int, findings: Findings) -> None:
    """`total`: the daemon's bytes."""
    have = total // _MIB
    if too_large := [task for task in needs if task.memory_mb > have]:
        findings.errors.append(
            f"{_named(too_large)}: memory_mb={_most(task.memory_mb for task in too_large)}, Docker has {have} MiB: "
            "run on a larger machine or set environment_kwargs.override_memory_mb"
        )
    mean = sum(task.memory_mb for task in needs) / max(1, len(needs))
    if not too_large and mean * n > have:
        findings.warnings.append(
            f"{n} environments at once may take {mean * n:.0f} MiB of memory ({mean:.0f} each on average), Docker has "
            f"{have} MiB: lower n_parallel_envs or environment_kwargs.override_memory_mb if containers are killed"
        )


def check_cpus(needs: Sequence[TaskNeeds], n: int, have: int, findings: Findings) -> None:
    too_many = [task for task in needs if task.cpus > have]
    if refused := [task for task in too_many if task.compose]:  # the Engine API's quota may be more, compose's not
        findings.errors.append(
            f"{_named(refused)}: cpus={_most(task.cpus for task in refused):g}, Docker has {have}: "
            "run on a larger machine or set environment_kwargs.override_cpus"
        )
    if slow := [task for task in too_many if not task.compose]:
        findings.warnings.append(
            f"{_named(slow)}: cpus={_most(task.cpus for task in slow):g}, Docker has {have}: it is slower than meant"
        )
    mean = sum(task.cpus for task in needs) / max(1, len(needs))
    if mean * n > BUSY_CPUS * have:
        findings.warnings.append(
            f"{n} environments at once may use {mean * n:.0f} CPUs ({mean:.1f} each on average), Docker has {have}: "
            "lower n_parallel_envs if agents or verifiers time out"
        )


def check_networks(
    needs: Sequence[TaskNeeds], n: int, pools: Sequence[Mapping[str, Any]], in_use: int, findings: Findings
) -> None:
    """`pools`: the daemon's DefaultAddressPools, none = its own. `in_use`: bridge networks that exist."""
    most = max((task.networks for task in needs), default=0)
    left = _capacity(pools) - in_use
    if most == 0 or left >= most * n:
        return
    fix = "remove unused networks (docker network prune), add default-address-pools to the daemon's daemon.json"
    if left < most:
        findings.errors.append(
            f"compose tasks need {most} networks each, Docker has addresses for {max(0, left)}: {fix}"
        )
    else:
        findings.warnings.append(
            f"compose tasks may need {most * n} networks at once, Docker has addresses for {left} more: {fix}, "
            "or lower n_parallel_envs"
        )


def check_tools(needs: Sequence[TaskNeeds], findings: Findings) -> None:
    """The docker CLI and its plugins, for the tasks that cannot do without."""
    if (composed := [task for task in needs if task.compose]) and not _works("docker", "compose", "version"):
        findings.errors.append(
            f"{_named(composed)}: docker-compose.yaml needs the docker CLI with its compose plugin: install it"
        )
    if (built := [task for task in needs if task.buildkit]) and not can_buildkit():
        findings.errors.append(
            f"{_named(built)}: the Dockerfile uses {built[0].buildkit}: install the docker CLI with its buildx plugin"
        )


def can_buildkit() -> bool:
    """A CLI with buildx, or old enough (before 23) to have BuildKit built in."""
    if _works("docker", "buildx", "version"):
        return True
    version = _output("docker", "--version").removeprefix("Docker version ")
    major = version.partition(".")[0]
    return major.isdigit() and int(major) < 23


def _capacity(pools: Sequence[Mapping[str, Any]]) -> int:
    if not pools:
        return _DEFAULT_NETWORKS
    bases = [(ip_network(pool["Base"], strict=False), int(pool["Size"])) for pool in pools]
    return sum(2 ** max(0, size - base.prefixlen) for base, size in bases if base.version == 4)


def _works(*command: str) -> bool:
    return bool(_output(*command))


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CLI_SEC)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _named(tasks: Sequence[TaskNeeds]) -> str:
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"task {tasks[0].name}{more}"


def _most[N: (int, float)](values: Iterable[N]) -> N:
    return max(values)
