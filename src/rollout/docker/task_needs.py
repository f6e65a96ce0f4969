"""What a task asks of the daemon, read from its files before the run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor.models.task.config import EnvironmentConfig, NetworkMode, TaskConfig

from src.errors import UserError
from src.rollout.compose import COMPOSE, MAIN, read_compose
from src.rollout.docker.buildkit import buildkit_feature


@dataclass(frozen=True, slots=True)
class TaskNeeds:
    """Of one trial. 0 = no limit is set. `networks`: that compose makes; `buildkit`: why the CLI has to build.

    `isolated`: some phase of it must not reach every network.
    """

    name: str
    path: Path
    cpus: float
    memory_mb: int
    compose: bool = False
    networks: int = 0
    buildkit: str | None = None
    isolated: bool = False


def task_needs(task_dir: Path, environment_kwargs: Mapping[str, Any]) -> TaskNeeds:
    """`environment_kwargs`: override_cpus and override_memory_mb go before task.toml. Raises UserError, OSError."""
    config = TaskConfig.model_validate_toml((task_dir / "task.toml").read_text())
    environments = list(_environments(config))
    cpus = _override(environment_kwargs, "override_cpus") or max(float(one.cpus or 0) for one in environments)
    memory = _override(environment_kwargs, "override_memory_mb") or max(one.memory_mb or 0 for one in environments)
    memory_mb = int(memory)
    folder = task_dir / "environment"
    compose, dockerfile = folder / COMPOSE, folder / "Dockerfile"
    if compose.exists():
        isolated = network_modes(config) != {NetworkMode.PUBLIC}
        return TaskNeeds(task_dir.name, task_dir, cpus, memory_mb, True, _networks(compose), isolated=isolated)
    built = dockerfile.exists() and not config.environment.docker_image
    feature = buildkit_feature(dockerfile.read_text(errors="replace")) if built else None
    return TaskNeeds(task_dir.name, task_dir, cpus, memory_mb, buildkit=feature)


def network_modes(config: TaskConfig) -> set[NetworkMode]:
    """Of all its phases and environments."""
    policies = [config.environment, config.agent, config.verifier, config.verifier.environment]
    policies += [part for step in config.steps or () for part in (step.agent, step.verifier)]
    modes = {policy.network_mode for policy in policies if policy is not None}
    return {NetworkMode.PUBLIC if mode is None else mode for mode in modes}


def _override(environment_kwargs: Mapping[str, Any], name: str) -> float:
    value = environment_kwargs.get(name) or 0
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"environment_kwargs.{name}={value!r}: must be a number") from None


def _environments(config: TaskConfig) -> Iterator[EnvironmentConfig]:
    """The agent's, and those of separate verifiers."""
    yield config.environment
    for verifier in (config.verifier, *(step.verifier for step in config.steps or ())):
        if verifier is not None and verifier.environment is not None:
            yield verifier.environment


def _networks(compose: Path) -> int:
    given = read_compose(compose)
    own = sum(not (isinstance(network, dict) and network.get("external")) for network in given["networks"].values())
    services = {MAIN: {}} | given["services"]
    bare = any(not isinstance(one, dict) or not one.keys() & {"networks", "network_mode"} for one in services.values())
    return own + (bare and "default" not in given["networks"])
