"""Copies files into and out of a container.

Small folders are read and written from outside (root_folder.py), where that can be; all else by the daemon
(archive.py): the agent may have replaced the container's own programs.
"""

import contextlib
import logging
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from harbor.models.trial.paths import EnvironmentPaths

from harbortrainer.docker.box.archive import (
    LOGS,
    REWARD,
    Chosen,
    TooMuch,
    all_files,
    fetch_file,
    fetch_folder,
    is_folder,
)
from harbortrainer.docker.box.root_folder import Unusual, copy_in, copy_logs
from harbortrainer.docker.daemon import call, engine

REWARDS = (EnvironmentPaths().reward_json_path.name, EnvironmentPaths().reward_text_path.name)
_LOGS = (EnvironmentPaths.agent_dir, EnvironmentPaths.verifier_dir)  # no verifier elsewhere grades them
_log = logging.getLogger("harbortrainer")


def fetch(container: str, source: str, target: Path) -> None:
    """Copy the contents of the container's folder into `target`: all of it, of logs what LOGS allow. Blocks.

    Raises FileNotFoundError, TooMuch; RuntimeError for what comes broken.
    """
    if any(PurePosixPath(source).is_relative_to(log) for log in _LOGS):
        fetch_logs(container, source, target)
    else:
        fetch_folder(container, source, target)


def fetch_logs(container: str, source: str, target: Path, chosen: Chosen = all_files) -> None:
    """Copy what LOGS allow of the container's folder into `target`, rewards before all else. Blocks.

    Raises FileNotFoundError; RuntimeError for what comes broken.
    """
    try:
        left_out = copy_logs(container, source, target, REWARDS, chosen)
    except Unusual:
        left_out = _fetched(container, source, target, chosen)
    if left_out:
        _log.warning(
            "%s of %s is not copied whole: more than %d MiB or %d files, or files that cannot be read",
            source, container, LOGS.size >> 20, LOGS.entries,
        )  # fmt: skip


def _fetched(container: str, source: str, target: Path, chosen: Chosen) -> bool:
    """The same by the daemon. Returns whether something was left out."""
    try:
        fetch_folder(container, source, target, chosen=chosen, limits=LOGS)
    except TooMuch:
        for name in filter(chosen, REWARDS):
            with contextlib.suppress(FileNotFoundError, TooMuch):
                fetch_file(container, f"{source}/{name}", target / name, REWARD)
        return True
    return False


class Files:
    def __init__(self, container: str) -> None:
        self._container = container

    async def upload_dir(self, source: Path, target: str) -> None:
        """Put the contents of `source` into `target`, made if missing; owned by root, modes kept."""
        with contextlib.suppress(Unusual):
            return await call(copy_in, self._container, source, target)
        with await call(_pack, source, target.strip("/")) as packed:
            await self._put(packed)

    async def upload_file(self, source: Path, target: str) -> None:
        """Put a file at `target`, or into it when it is a directory or ends with /."""
        into = target.endswith("/") or await call(is_folder, self._container, target)
        path = PurePosixPath(target) / source.name if into else PurePosixPath(target)
        with await call(_tar, {str(path).strip("/"): source.resolve()}) as packed:
            await self._put(packed)

    async def download_dir(self, source: str, target: Path) -> None:
        """Copy the contents of `source` into `target`, of a log what is allowed, without special files.

        Raises FileNotFoundError, RuntimeError when too large.
        """
        await call(fetch, self._container, source, target)

    async def download_file(self, source: str, target: Path) -> None:
        """Copy one file to `target`, or into it when it is a directory. Raises FileNotFoundError."""
        await call(fetch_file, self._container, source, target)

    async def _put(self, archive: IO[bytes]) -> None:
        await call(engine().put_archive, self._container, "/", archive)


def _pack(source: Path, prefix: str) -> IO[bytes]:
    """The contents of a directory as tar; with a prefix, under that path, which is then created even if empty."""
    paths = sorted(source.rglob("*")) or ([source] if prefix else [])
    return _tar({str(PurePosixPath(prefix) / path.relative_to(source).as_posix()): path for path in paths})


def _tar(paths: Mapping[str, Path]) -> IO[bytes]:
    """A tar of files and folders by name, owned by root: a file without a name, since it may be larger than memory."""
    packed = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, path in paths.items():
            tar.add(path, name, recursive=False, filter=_of_root)
    packed.seek(0)
    return packed


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    # a deep copy has its archive in it, with all earlier members and theirs: twice as much with each file
    return member.replace(uid=0, gid=0, uname="", gname="", deep=False)
