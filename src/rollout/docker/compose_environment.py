"""Harbor's Docker environment for tasks with a compose file of their own, with what it makes marked as ours."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.task.config import EnvironmentConfig

from src.rollout.compose import overlay


class ComposeEnvironment(DockerEnvironment):
    """Also of a separate verifier, for which Harbor leaves out the compose files given with the task's environment."""

    def __init__(
        self,
        environment_dir: Path,
        *args: Any,
        session_id: str,
        task_env_config: EnvironmentConfig,
        run_id: str = "",
        extra_docker_compose: Sequence[Path | str] = (),
        **kwargs: Any,
    ) -> None:
        ours = overlay(environment_dir, run_id, prebuilt=bool(task_env_config.docker_image))
        super().__init__(
            environment_dir,
            *args,
            session_id=f"{session_id}-{secrets.token_hex(4)}",  # the compose project: runs give trials the same names
            task_env_config=task_env_config,
            extra_docker_compose=[*extra_docker_compose, ours],
            **kwargs,
        )
