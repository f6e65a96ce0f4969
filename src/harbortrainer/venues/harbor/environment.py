"""The Harbor environment of a task: this package's for `docker`, Harbor's own for everything else."""

import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from harbor.models.environment_type import EnvironmentType
from harbor.models.task.config import NetworkMode
from harbor.models.trial.config import EnvironmentConfig
from pydantic import BaseModel, BeforeValidator, ConfigDict, NonNegativeInt, StringConstraints, ValidationError

from harbortrainer.config import Config
from harbortrainer.docker.box.compose import COMPOSE, MAIN, read_compose
from harbortrainer.docker.checks.preflight import network_modes, task_needs
from harbortrainer.errors import UserError, wrong_field
from harbortrainer.harbor import task_config
from harbortrainer.learning.agents import by_agent
from harbortrainer.model_api.prompts import Prompts
from harbortrainer.plugins import FORM, bring
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.text import meant
from harbortrainer.venues.harbor.container_agent import TERMINUS, agent_of, check_agent

PREBUILT_ONLY = "prebuilt_only"


_Word = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Words = Annotated[list[_Word], BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)]


class EngineOptions(BaseModel):
    """Options. `cap_add`: as Docker names them; it refuses one that it does not know.

    `prebuilt_only`: no Dockerfile is built in place of an image that cannot be pulled.
    """

    model_config = ConfigDict(strict=True)

    pids_limit: NonNegativeInt = 512
    allow_sudo: bool = False
    cap_add: _Words = []
    own_network: bool = False
    prebuilt_only: bool = False


ENGINE_ENVIRONMENT = "harbortrainer.docker.box.environment:DockerEngineEnvironment"
COMPOSE_ENVIRONMENT = "harbortrainer.docker.box.environment:ComposeEnvironment"
_RESERVED = ("type", "import_path", "kwargs", "stream")  # fields of EnvironmentConfig that users cannot set
_FIELDS = tuple(name for name in EnvironmentConfig.model_fields if name not in _RESERVED)


def environment_config(
    environment_type: str, environment_kwargs: Mapping[str, Any], task_dir: Path, run_id: str
) -> EnvironmentConfig:
    """Return the environment of a trial of `task_dir`.

    `docker` is the Engine environment, or Harbor's own with our labels where the task has a compose file.
    `environment_kwargs` sets fields of Harbor's EnvironmentConfig (override_memory_mb, env, ...) and options of the
    environment, here `EngineOptions`. Raises UserError: unknown type or option, wrong value, allowlist on Docker.
    """
    if ":" in environment_type:
        return _config(environment_kwargs, {}, import_path=_brought(environment_type))
    chosen = _environment_type(environment_type)
    if chosen is not EnvironmentType.DOCKER:
        return _config(environment_kwargs, {}, type=chosen)
    task = task_config(task_dir)
    if NetworkMode.ALLOWLIST in network_modes(task):
        raise UserError(
            f"task {task_dir.name}: network_mode=allowlist is not supported on Docker here; use no-network or public "
            "in its task.toml, or another environment_type (daytona, modal, e2b)"
        )
    options = _engine_options(environment_kwargs)
    own = {name: value for name, value in environment_kwargs.items() if name not in options}
    compose = task_dir / "environment" / COMPOSE
    if compose.exists():
        main = read_compose(compose)["services"].get(MAIN) or {}
        given = task.environment.docker_image or compose.with_name("Dockerfile").exists()
        if not (given or {"build", "extends"} & {*main}):
            raise UserError(
                f"task {task_dir.name}: Harbor builds service {MAIN} of {COMPOSE}, and has no Dockerfile for it; add "
                "environment/Dockerfile, or name its image as docker_image in task.toml"
            )
        return _config(own, {"run_id": run_id}, import_path=COMPOSE_ENVIRONMENT)
    for name in own:
        if name not in _FIELDS:
            known = sorted((*EngineOptions.model_fields, *_FIELDS))
            parts = [f"environment_kwargs.{name}: unknown for docker", meant(name, known), f"one of {', '.join(known)}"]
            raise UserError("; ".join(filter(None, parts)))
    return _config(own, {**options, "run_id": run_id}, import_path=ENGINE_ENVIRONMENT)


def with_agent(environment: EnvironmentConfig, task_dir: Path, config: Config) -> EnvironmentConfig:
    """Return environment with what the agent of `config` needs: its programs, mounted read-only, and memory of its own.

    A given override_memory_mb stays as it is. Raises UserError for tasks that only Terminus-2 can do here.
    """
    if (agent := agent_of(config)) is None:
        return environment
    task = task_config(task_dir)
    if (task_dir / "environment" / COMPOSE).exists():
        raise UserError(
            f"agent={agent.name}: task {task_dir.name} has {COMPOSE}, for which only agent={TERMINUS} works; "
            f"tasks_exclude={task_dir.name} leaves it out"
        )
    memory = environment.override_memory_mb
    if memory is None and task.environment.memory_mb:
        memory = task.environment.memory_mb + agent.memory_mb
    mounted = [*(environment.mounts or ()), *agent.mounts(config)]
    return environment.model_copy(update={"override_memory_mb": memory, "mounts": mounted or None})


def check_agent_tasks(task_dirs: Iterable[Path], config: Config, template: ChatTemplate) -> None:
    """Check that the run's agents work here, with all tasks and with the model's template. Raises UserError."""
    check_agent(config)
    configs = [one for one in by_agent(config) if agent_of(one) is not None]
    if configs:
        Prompts(template)
    for task_dir in task_dirs if configs else ():
        environment = environment_config(config.environment_type, config.environment_kwargs, task_dir, "")
        for one in configs:
            with_agent(environment, task_dir, one)


def check_tasks(task_dirs: Collection[Path], environment_type: str, environment_kwargs: Mapping[str, Any]) -> None:
    """Check that the environment supports all tasks. Raises one UserError that names every fault."""
    if ":" not in environment_type:
        _check_sandboxes(_environment_type(environment_type))
    faults: dict[str, None] = {}
    needs = [task_needs(one, {}) for one in task_dirs]
    plain = [one.path for one in needs if not (one.compose or one.hosts_listed)]  # all alike for what is checked
    alike = {*plain}
    for task_dir in (*plain[:1], *(one for one in task_dirs if one not in alike)):
        try:
            environment_config(environment_type, environment_kwargs, task_dir, "")
        except UserError as error:
            faults[str(error)] = None
    if faults:
        raise UserError("\n".join(faults))


def python_warning(version: tuple[int, int, int] = sys.version_info[:3]) -> list[str]:
    """Warn where Harbor would unpack a sandbox service's files with a tarfile that has CVE-2025-4517."""
    if version >= (3, 13, 4) or (3, 12, 11) <= version < (3, 13):
        return []
    shown = ".".join(map(str, version))
    return [
        f"Python {shown}: an agent in a sandbox can write files on this machine (CVE-2025-4517, Harbor's downloads); "
        "install Python 3.12.11, 3.13.4 or later, and set up again"
    ]


def _check_sandboxes(kind: EnvironmentType) -> None:
    """Check that Harbor finds what a sandbox service needs here: package, key, program. Raises UserError."""
    if kind is EnvironmentType.DOCKER:
        return
    from harbor.environments.factory import EnvironmentFactory  # slow to import

    try:
        EnvironmentFactory.run_preflight(kind)
    except (ImportError, SystemExit) as error:  # the latter is how Harbor says that a key is missing
        raise UserError(f"environment_type={kind.value}: {' '.join(str(error).split())}") from None


def _environment_type(name: str) -> EnvironmentType:
    valid = [member.value for member in EnvironmentType]
    if name not in valid:
        parts = [f"environment_type={name}: unknown", meant(name, valid), f"one of {', '.join(valid)}", f"or {FORM}"]
        raise UserError("; ".join(filter(None, parts)))
    return EnvironmentType(name)


def _brought(text: str) -> str:
    """The path by which Harbor imports an environment's class from outside. Raises UserError."""
    from harbor.environments.base import BaseEnvironment

    kind = bring("environment_type", text).value
    if not (isinstance(kind, type) and issubclass(kind, BaseEnvironment)):
        raise UserError(f"environment_type={text}: no subclass of harbor.environments.base.BaseEnvironment")
    return f"{kind.__module__}:{kind.__qualname__}"


def _config(given: Mapping[str, Any], kwargs: Mapping[str, Any], **fields: Any) -> EnvironmentConfig:
    fields |= {name: value for name, value in given.items() if name in _FIELDS and name not in fields}
    options = {name: value for name, value in given.items() if name not in _FIELDS}
    try:
        return EnvironmentConfig(**fields, kwargs={**options, **kwargs})
    except ValidationError as error:
        raise UserError(f"environment_kwargs.{wrong_field(error)}") from error


def _engine_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `given` that belong to EngineOptions."""
    try:
        own = EngineOptions.model_validate({name: given[name] for name in EngineOptions.model_fields if name in given})
    except ValidationError as error:
        raise UserError(f"environment_kwargs.{wrong_field(error)}") from error
    return own.model_dump(exclude_unset=True)
