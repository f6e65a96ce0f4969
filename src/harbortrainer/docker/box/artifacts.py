"""Fetches files and collects artifacts without what the agent may have made of the container's tar, or of links.

Notes when they are lost with their container, since Harbor goes on without those that it could not collect.
"""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import requests
from docker.errors import DockerException
from harbor.environments.base import BaseEnvironment
from harbor.utils.path_filter import filter_paths_by_patterns

from harbortrainer.docker.box.archive import LOGS, WORK, fetch_file, fetch_folder, is_folder
from harbortrainer.docker.box.files import fetch, fetch_logs
from harbortrainer.docker.box.root_folder import Unusual, find_folder
from harbortrainer.docker.daemon import call
from harbortrainer.harbor import boundary

UP_SEC, UP_NAP_SEC = 1.0, 0.1


class CollectedEnvironment(BaseEnvironment):
    """An environment that knows whose fault a failed collection was.

    `lost`: why an artifact could not be collected, if its container or the daemon had gone away. A verifier elsewhere
    would grade work that was never collected. `graded_elsewhere`: one will; otherwise artifacts are logs.
    """

    lost, graded_elsewhere = "", True

    @abstractmethod
    def _container_of(self, service: str | None) -> str:
        """The service's container; None = the agent's. Blocks. Raises FileNotFoundError, DockerException."""

    @abstractmethod
    def _container_runs(self, service: str | None) -> bool:
        """Whether the service's container runs; None = the agent's. Blocks. Raises docker.errors.DockerException."""

    @boundary
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._fetch(fetch_file, None, source_path, target_path)

    @boundary
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._fetch(fetch, None, source_dir, target_dir)

    async def _fetch(
        self, how: Callable[[str, str, Path], None], service: str | None, source: str, target: Path | str
    ) -> None:
        await call(lambda: how(self._container_of(service), source, Path(target)))

    async def service_is_dir(self, path: str, *, service: str | None = None, user: str | int | None = None) -> bool:
        """Look from outside, or ask the daemon; not the container's programs."""
        container = await call(self._container_of, service)
        with contextlib.suppress(Unusual):
            await call(find_folder, container, path)
            return True
        return await call(is_folder, container, path)

    async def service_download_file(
        self, source_path: str, target_path: Path | str, *, service: str | None = None
    ) -> None:
        async with self._noting_loss(service):
            await self._fetch(fetch_file, service, source_path, target_path)

    async def service_download_dir(
        self, source_dir: str, target_dir: Path | str, *, service: str | None = None
    ) -> None:
        async with self._noting_loss(service):
            await self._fetch(fetch if self.graded_elsewhere else fetch_logs, service, source_dir, target_dir)

    async def service_download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str], service: str | None = None
    ) -> None:
        async with self._noting_loss(service):
            await super().service_download_dir_with_exclusions(
                source_dir=source_dir, target_dir=target_dir, exclude=exclude, service=service
            )

    async def download_dir_filtered(
        self,
        *,
        source_dir: str,
        target_dir: Path | str,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        protect: Sequence[str] | None = None,
    ) -> None:
        """Do without the container's find and tar, as Harbor does with them."""

        def is_chosen(path: str) -> bool:
            return path in (protect or ()) or bool(filter_paths_by_patterns([path], include=include, exclude=exclude))

        container = await call(self._container_of, None)
        await call(fetch_logs, container, source_dir, Path(target_dir), is_chosen)

    async def _download_dir_with_exclusions_impl(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str], service: str | None
    ) -> None:
        """Do without the container's tar, which Harbor would run, and without its temporary archive there."""
        container, limits = await call(self._container_of, service), WORK if self.graded_elsewhere else LOGS
        await call(fetch_folder, container, source_dir, Path(target_dir), exclude, limits=limits)

    @contextlib.asynccontextmanager
    async def _noting_loss(self, service: str | None) -> AsyncIterator[None]:
        try:
            yield
        except (OSError, RuntimeError, DockerException) as error:
            if isinstance(error, requests.RequestException) or not await self.is_up(service):
                why = " ".join(str(error).split())[-200:]
                self.lost = f"the container of {service or 'the agent'} or its daemon went away: {why}"
            raise

    async def is_up(self, service: str | None = None) -> bool:
        """Return whether the service's container runs and goes on; None = the agent's. Takes a second where it does.

        Once its first process was killed, the daemon calls it running for a moment.
        """
        try:
            for _ in range(round(UP_SEC / UP_NAP_SEC)):
                if not await call(self._container_runs, service):
                    return False
                await asyncio.sleep(UP_NAP_SEC)
        except (DockerException, requests.RequestException):
            return False
        return True
