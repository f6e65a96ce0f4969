"""Harbor environments for `environment_type=docker`: one container a trial by the Engine API, or Docker Compose."""

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from docker.errors import ImageNotFound
from docker.types import Mount
from harbor.environments.base import ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import require_agent_environment_definition, should_use_prebuilt_docker_image
from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode, ServiceVolumeConfig
from harbor.models.trial.paths import TrialPaths

from harbortrainer.docker.box.artifacts import CollectedEnvironment
from harbortrainer.docker.box.command import ShellCommand, cheap
from harbortrainer.docker.box.compose import MAIN, overlay, service_containers
from harbortrainer.docker.box.container import (
    ROOT,
    ContainerSpec,
    container_ended,
    container_name,
    is_running,
    set_networked,
    start_container,
    wait_healthy,
)
from harbortrainer.docker.box.files import upload_dir, upload_file
from harbortrainer.docker.box.shell import Output, Shells
from harbortrainer.docker.daemon import call, engine
from harbortrainer.docker.images import image as images
from harbortrainer.docker.integrity.agent_phases import AgentPhases
from harbortrainer.docker.integrity.cause import Verdict
from harbortrainer.docker.integrity.footprint import FOOTPRINT, dump, footprint_key
from harbortrainer.docker.integrity.watch import Sight, watching
from harbortrainer.docker.keeping.cleaning import in_background, remove_after
from harbortrainer.docker.keeping.ownership import labels
from harbortrainer.docker.keeping.removals import removals
from harbortrainer.docker.network.bridge import isolate_compose
from harbortrainer.durable.files import replace_text
from harbortrainer.harbor import boundary

DEFAULT_PIDS_LIMIT = 512
NO_PROCESS = 254  # exit code of a command that could not be started
_SIGTERM = 143  # exit code of a bash that ended itself, since it could not fork
_FORK_FAILED = re.compile(rb"fork: (?:retry: )?Resource temporarily unavailable")


class DockerEngineEnvironment(CollectedEnvironment):
    """One container. Arguments beyond Harbor's:

    `run_id` labels the container. `pids_limit` is its largest number of processes, 0 = no limit. `allow_sudo` lets
    setuid programs (sudo, su, ping) work for users other than root. `cap_add` adds capabilities to those that ordinary
    images need (NET_RAW, SYS_PTRACE, ...). `own_network` gives the container a network namespace that no other
    trial has used. `prebuilt_only`: no Dockerfile is built in place of an image that cannot be pulled.
    `records_footprint`: the agent is the task's solution; its trial's folder gets FOOTPRINT.
    """

    def __init__(
        self,
        *args: Any,
        run_id: str = "",
        pids_limit: int = DEFAULT_PIDS_LIMIT,
        allow_sudo: bool = False,
        cap_add: Sequence[str] = (),
        own_network: bool = False,
        prebuilt_only: bool = False,
        records_footprint: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits: dict[str, Any] = {  # of its container
            "pids_limit": pids_limit, "allow_sudo": allow_sudo, "cap_add": tuple(cap_add), "own_network": own_network,
        }  # fmt: skip
        self._given = args, {**kwargs, **self._limits, "run_id": run_id, "prebuilt_only": prebuilt_only}
        self._prebuilt_only = prebuilt_only
        self.records_footprint = records_footprint
        self.run_id = run_id
        self._pids_limit = pids_limit
        self.container = container_name(self.session_id)
        self.image: images.Image | None = None
        self._given_image: images.Image | None = None
        self._creation: asyncio.Future[None] | None = None
        self._spec: ContainerSpec | None = None
        self._shells = Shells(self.container)
        folder = self.environment_dir.parent
        self.task = folder if (folder / "task.toml").is_file() else None
        self.phases = AgentPhases(self.container, self._shells, run_id)
        self.verdict = Verdict()
        self._began = 0.0  # the last command

    @staticmethod
    def type() -> str:
        return "docker-engine"

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(gpus=True, disable_internet=True, dynamic_network_policy=True)

    def _validate_definition(self) -> None:
        require_agent_environment_definition(self.environment_dir, docker_image=self.task_env_config.docker_image)

    @boundary
    async def start(self, force_build: bool) -> None:
        """Build or find the image, start the container, make Harbor's folders. Raises ImageError, docker APIError."""
        prebuilt = should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=self.task_env_config.docker_image, force_build=force_build
        )
        image_name = self.task_env_config.docker_image if prebuilt else None
        find = partial(images.task_image, self.environment_dir, image_name, prebuilt_only=self._prebuilt_only)
        image = self._given_image or await find(force=force_build)
        await removals().room()
        with removals().starting():
            try:
                await self._create(image)
            except ImageNotFound:  # it was removed since
                images.forget(image.reference)
                image = await find()
                await self._create(image)
            if image.healthcheck:
                await call(wait_healthy, self.container, self.task_env_config.build_timeout_sec)
            dirs = self._mount_targets(writable_only=True)
            make = self._ensure_dirs_command(dirs) if dirs else "true"
            await self.phases.prepare(image, self._directory(None), make)
        await self._upload_environment_dir_after_start()

    async def _create(self, image: images.Image) -> None:
        self.image = image
        self._spec = ContainerSpec(
            image=image,
            name=self.container,
            labels=labels(self.run_id, self.session_id),
            environment=self._startup_env(),
            networked=not self._network_disabled,
            cpus=self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT),
            memory_mb=self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT),
            gpus=self._effective_gpus,
            mounts=[_mount(mount) for mount in self._host_mounts],
            **self._limits,
        )
        self._creation = asyncio.ensure_future(call(start_container, self._spec))
        # Cancelled or not, `stop` waits for it and removes the container.
        await asyncio.shield(self._creation)
        if self._spec.has_shell:
            await self._shells.take_first()

    @boundary
    async def stop(self, delete: bool) -> None:
        """Remove the container in the background (`cleaning.drain` waits for it). Images are kept."""
        self._shells.close()
        if self._creation is not None:
            gone = partial(_ended, self._spec, self._given_image) if self._spec else None
            in_background(remove_after(self.container, self._creation, gone, first=True))
            self._creation = None

    @boundary
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await call(set_networked, self.container, network_policy.network_mode == NetworkMode.PUBLIC)

    async def open_agent_phase(self) -> None:
        """Call it before the agent acts; see AgentPhases.open."""
        await self.phases.open()

    async def close_agent_phase(self, *, final: bool) -> None:
        """Call it before a verifier runs here; `final`: the agent does not act again. See AgentPhases.close."""
        if self.records_footprint and final:
            await self._record()
        await self.phases.close()

    async def footprint_key(self) -> str | None:
        """Return digest of what the footprint of the task's solution depends on; None = the task has no solution."""
        return await call(footprint_key, self.task, self.image) if self.task and self.image else None

    async def _record(self) -> None:
        if (key := await self.footprint_key()) is not None:
            text = dump(await self.phases.observe(), key)
            await asyncio.to_thread(replace_text, self.trial_paths.trial_dir / FOOTPRINT, text)

    @property
    def is_watchable(self) -> bool:
        """Whether the agent's phase is closed, so that a verification here can be judged."""
        return self.phases.closed

    @contextlib.asynccontextmanager
    async def watched(self, own: Collection[str] = ()) -> AsyncIterator[Sight]:
        """Watch a verification, and note before it what the container has changed. `own`: what its folders have."""
        self._shells.drop()  # one that has brought the tests would count as the policy's
        is_own: Callable[[str], bool] = own.__contains__ if not self.phases.image_has_tests else lambda _: True
        whose = self.container, self.run_id, self.phases.kept
        async with watching(*whose, is_own, own, lambda: self._began) as sight:
            self._shells.drop()  # one may have come from the agent's last command meanwhile
            await self.phases.note_changes()
            yield sight

    @property
    def workdir(self) -> str:
        return self._directory(None)

    @property
    def first_network_policy(self) -> NetworkPolicy:
        """Of the agent's first phase."""
        _, kwargs = self._given
        return [*(kwargs.get("phase_network_policies") or ()), self.network_policy][0]

    def twin(self, name: str, folder: Path, image: images.Image | None = None) -> "DockerEngineEnvironment":
        """Return another environment of the task, not started. `image`: made for it alone, and removed after it."""
        args, kwargs = self._given
        paths = TrialPaths(folder)
        paths.agent_dir.mkdir(parents=True, exist_ok=True)
        made = DockerEngineEnvironment(*args, **{**kwargs, "session_id": name, "trial_paths": paths})
        if image is not None:
            made._given_image = image
            made._limits["own_network"] = True  # a holder of its namespace would keep the image
        return made

    @boundary
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command as `bash -c` (`sh -c` without bash); in / when the agent has removed the working directory.

        Raises RuntimeError when it takes over `timeout_sec`, or the container stopped while it ran; also when its shell
        ended and no agent acts, which could have killed it.
        """
        self._began = time.time()
        merged, known = self._merge_env(env) or {}, self._spec.environment if self._spec else {}
        extra = {name: value for name, value in merged.items() if known.get(name) != value}
        try:
            output = await self._shells.run(
                ShellCommand(cheap(command), self._directory(cwd), extra, needs_cwd=cwd is not None),
                user=self._user(self._resolve_user(user)),
                seconds=timeout_sec or None,
            )
        except TimeoutError:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from None
        # the agent may have killed the shell; a verifier's reward that stands there already may not be its last word
        if output.shell_died and not (not self.phases.closed and await call(is_running, self.container)):
            raise RuntimeError(
                f"container {self.container} or the connection to it went down while a command ran in it"
            )
        if self._pids_limit and found_no_process(output):
            await self.phases.relieve(self._pids_limit)
            output = replace(output, return_code=NO_PROCESS)
        return await self._result(output)

    async def _result(self, output: Output) -> ExecResult:
        stdout = output.stdout.decode(errors="replace") or None
        stderr = output.stderr.decode(errors="replace") or None
        if callback := self._output_callback():
            if stdout:
                await callback(stdout, "stdout")
            if stderr:
                await callback(stderr, "stderr")
        return ExecResult(stdout=stdout, stderr=stderr, return_code=output.return_code)

    def _user(self, user: str | int | None) -> str:
        name = str(user) if user is not None else self.image.user if self.image else ""
        return "root" if name in ROOT else name

    def _directory(self, cwd: str | None) -> str:
        default = self.task_env_config.workdir or (self.image.workdir if self.image else "/")
        return default if cwd is None else cwd if cwd.startswith("/") else f"{default}/{cwd}"

    @boundary
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await call(upload_file, self.container, Path(source_path), target_path)

    @boundary
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await call(upload_dir, self.container, Path(source_dir), target_dir)

    def _container_of(self, service: str | None) -> str:
        if not self.is_main_service(service):
            raise FileNotFoundError(f"service {service} has no container")
        return self.container

    def _container_runs(self, service: str | None) -> bool:
        return is_running(self.container)


def _ended(spec: ContainerSpec, given: images.Image | None) -> None:
    """Call it once the container of `spec` is gone, and of an image that was made for it alone."""
    container_ended(spec)
    if given is not None:
        with contextlib.suppress(ImageNotFound):
            engine().remove_image(given.reference)


def found_no_process(output: Output) -> bool:
    """Return whether the container had no process left for the command, or for a part of it."""
    return output.return_code == NO_PROCESS or (
        output.return_code == _SIGTERM and _FORK_FAILED.search(output.stderr) is not None
    )


def _mount(mount: ServiceVolumeConfig) -> Mount:
    if mount["type"] == "image":
        raise ValueError(f"mount {mount['target']}: type image is not supported; use bind or volume")
    return Mount(mount["target"], mount.get("source"), mount["type"], read_only=mount.get("read_only", False))


class ComposeEnvironment(CollectedEnvironment, DockerEnvironment):
    """Harbor's, with our compose file laid over the task's.

    Also for a separate verifier, for which Harbor leaves out the compose files given with the task's environment.
    """

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
        self._overlay = overlay(environment_dir, run_id, prebuilt=bool(task_env_config.docker_image))
        super().__init__(
            environment_dir,
            *args,
            session_id=f"{session_id}-{secrets.token_hex(4)}",  # the compose project: runs give trials the same names
            task_env_config=task_env_config,
            extra_docker_compose=[*extra_docker_compose, self._overlay],
            **kwargs,
        )

    @boundary
    async def start(self, force_build: bool) -> None:
        await call(isolate_compose)
        await super().start(force_build)

    @boundary
    async def stop(self, delete: bool) -> None:
        await super().stop(delete)
        if delete:
            self._overlay.unlink(missing_ok=True)

    def _container_of(self, service: str | None) -> str:
        found = service_containers(self._overlay, service or MAIN, stopped=True)
        if not found:
            raise FileNotFoundError(f"service {service or MAIN} has no container")
        return found[0]

    def _container_runs(self, service: str | None) -> bool:
        return bool(service_containers(self._overlay, service or MAIN))
