"""Copies files into and out of a container.

Folders are read and written from outside (root_folder.py), where that can be. Others go in through the open
shell, at a tenth of the cost of the daemon's archive call, which does the rest: what is large, and where the container
lacks the programs. What comes out comes by the daemon (archive.py): the agent may have replaced the container's own.
"""

import base64
import contextlib
import gzip
import logging
import os
import shlex
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from harbor.models.trial.paths import EnvironmentPaths

from harbortrainer.docker.box.archive import LOGS, REWARD, Chosen, TooMuch, all_files, fetch_file, fetch_folder
from harbortrainer.docker.box.command import IN_SHELL
from harbortrainer.docker.box.root_folder import Unusual, copy_in, copy_logs
from harbortrainer.docker.box.shell import Shells
from harbortrainer.docker.daemon import call, engine

MAX_INLINE_UPLOAD = 128 * 1024  # base64 characters; twice as many cost as much as an archive call
MAX_PACKED = 2 * 1024**2  # bytes that are compressed for that
SHELL_SEC = 60.0  # for a transfer through the shell; after that the daemon's archive call does it
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
    def __init__(self, container: str, shells: Shells) -> None:
        self._container = container
        self._shells = shells

    async def upload_dir(self, source: Path, target: str) -> None:
        """Put the contents of `source` into `target`, made if missing; owned by root, modes kept."""
        with contextlib.suppress(Unusual):
            return await call(copy_in, self._container, source, target)
        quoted = shlex.quote(target)
        with await call(_pack, source, "") as packed:
            inline = await call(_inline, packed)
        unpack = f"printf %s {inline} | base64 -d | tar -xzf - -C {quoted}"
        if inline and await self._succeeds(f"{{ [ -d {quoted} ] || mkdir -p {quoted}; }} && {unpack}"):
            return
        with await call(_pack, source, target.strip("/")) as packed:
            await self._put(packed)

    async def upload_file(self, source: Path, target: str) -> None:
        """Put a file at `target`, or into it when it is a directory or ends with /."""
        into = target.endswith("/") or await self._succeeds(f"test -d {shlex.quote(target)}")
        path = PurePosixPath(target) / source.name if into else PurePosixPath(target)
        data, mode = source.read_bytes(), source.stat().st_mode & 0o7777
        inline = base64.b64encode(data).decode()
        if len(inline) <= MAX_INLINE_UPLOAD:
            name, parent = shlex.quote(str(path)), shlex.quote(str(path.parent))
            write = f"mkdir -p {parent} && printf %s {inline} | base64 -d > {name}"
            if await self._succeeds(f"{write} && chmod {mode:o} {name} && chown 0:0 {name}"):
                return
        with await call(_tar, {str(path).strip("/"): source.resolve()}) as packed:
            await self._put(packed)

    async def _succeeds(self, command: str) -> bool:
        """False, too, when it does not end: the agent may have replaced its programs, and may act still."""
        try:
            output = await self._shells.run(f"{IN_SHELL}\n{command}", user="root", seconds=SHELL_SEC)
        except TimeoutError:
            return False
        return output.return_code == 0

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


def _inline(packed: IO[bytes]) -> str:
    """The archive as a word of a command; "" = it is too large for that."""
    if os.fstat(packed.fileno()).st_size > MAX_PACKED:
        return ""
    inline = base64.b64encode(gzip.compress(packed.read(), 1, mtime=0)).decode()
    return inline if len(inline) <= MAX_INLINE_UPLOAD else ""


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    # a deep copy has its archive in it, with all earlier members and theirs: twice as much with each file
    return member.replace(uid=0, gid=0, uname="", gname="", deep=False)
