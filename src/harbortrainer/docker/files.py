"""Copies files into and out of a container.

Small folders are read and written from outside (inside.py), where that can be. Others pass through the open shell, at a
tenth of the cost of the daemon's archive calls (put_archive, get_archive). Those do the rest: what is large, and where
the container lacks the programs.
"""

import base64
import contextlib
import gzip
import io
import os
import shlex
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from docker.errors import NotFound
from harbor.environments.base import transfer_tar_filter

from harbortrainer.docker.command import IN_SHELL
from harbortrainer.docker.daemon import call, engine
from harbortrainer.docker.inside import Unusual, copy_in, copy_out
from harbortrainer.docker.shell import MAX_OUTPUT_BYTES, Output, Shells

MAX_INLINE_UPLOAD = 128 * 1024  # base64 characters; twice as many cost as much as an archive call
MAX_SHELL_DOWNLOAD = 32 * 1024 * 1024
MAX_DOWNLOAD = 2 * 1024**3
SHELL_SEC = 60.0  # for a transfer through the shell; after that the daemon's archive calls do it
EMPTY = 44  # exit code for an empty folder
_SPOOL = 8 * 1024 * 1024


class Files:
    def __init__(self, container: str, shells: Shells) -> None:
        self._container = container
        self._shells = shells

    async def upload_dir(self, source: Path, target: str) -> None:
        """Put the contents of `source` into `target`, made if missing; owned by root, modes kept."""
        with contextlib.suppress(Unusual):
            return await call(copy_in, self._container, source, target)
        packed = await call(_pack, source, "")
        quoted = shlex.quote(target)
        inline = base64.b64encode(gzip.compress(packed, 1, mtime=0)).decode()
        unpack = (
            f"{{ [ -d {quoted} ] || mkdir -p {quoted}; }} && printf %s {inline} | base64 -d | tar -xzf - -C {quoted}"
        )
        if len(inline) <= MAX_INLINE_UPLOAD and await self._succeeds(unpack):
            return
        prefix = target.strip("/")
        await self._put(await call(_pack, source, prefix) if prefix else packed)

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
        await self._put(await call(_tar, {str(path).strip("/"): source.resolve()}))

    async def download_dir(self, source: str, target: Path) -> None:
        """Copy the contents of `source` into `target`, without special files and links that lead outside.

        Raises FileNotFoundError, RuntimeError when too large.
        """
        target.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(Unusual):
            return await call(copy_out, self._container, source, target)
        quoted = shlex.quote(source)
        entries = f"{quoted}/* {quoted}/.[!.]* {quoted}/..?*"
        find = f'for f in {entries}; do [ -e "$f" ] || [ -L "$f" ] && set -- full && break; done'
        empty = f'set --; if [ -d {quoted} ]; then {find}; [ "$1" ] || exit {EMPTY}; fi'
        pack = f"{IN_SHELL}\n{empty}; tar -cf - -C {quoted} . | head -c {MAX_SHELL_DOWNLOAD}"
        if (output := await self._run(pack, MAX_SHELL_DOWNLOAD + 1024 * 1024)) is not None:
            if output.return_code == EMPTY:
                return
            if len(output.stdout) < MAX_SHELL_DOWNLOAD and await call(_unpack, io.BytesIO(output.stdout), target):
                return
        with await call(self._get, source.rstrip("/") + "/.") as archive:
            if not await call(_unpack, archive, target):
                raise RuntimeError(f"{source} in container {self._container} came as a broken archive")

    async def download_file(self, source: str, target: Path) -> None:
        """Copy one file to `target`, or into it when it is a directory. Raises FileNotFoundError."""
        target = target / PurePosixPath(source).name if target.is_dir() else target
        target.parent.mkdir(parents=True, exist_ok=True)
        with await call(self._get, source) as archive:
            await call(_unpack_file, archive, source, target)

    async def _succeeds(self, command: str) -> bool:
        output = await self._run(f"{IN_SHELL}\n{command}")
        return output is not None and output.return_code == 0

    async def _run(self, command: str, limit: int = MAX_OUTPUT_BYTES) -> Output | None:
        """None = it does not end: the agent may have replaced its programs, and may act still."""
        try:
            return await self._shells.run(command, user="root", seconds=SHELL_SEC, limit=limit)
        except TimeoutError:
            return None

    async def _put(self, archive: bytes) -> None:
        await call(engine().put_archive, self._container, "/", archive)

    def _get(self, source: str) -> IO[bytes]:
        try:
            chunks, _ = engine().get_archive(self._container, source)
        except NotFound as error:
            raise FileNotFoundError(f"no {source} in container {self._container}") from error
        spool = tempfile.SpooledTemporaryFile(_SPOOL)  # noqa: SIM115 the caller closes it
        for chunk in chunks:
            spool.write(chunk)
            if spool.tell() > MAX_DOWNLOAD:
                spool.close()
                raise RuntimeError(f"{source} in container {self._container} is larger than {MAX_DOWNLOAD >> 30} GiB")
        spool.seek(0)
        return spool


def _pack(source: Path, prefix: str) -> bytes:
    """The contents of a directory as tar; with a prefix, under that path, which is then created even if empty."""
    paths = sorted(source.rglob("*")) or ([source] if prefix else [])
    return _tar({str(PurePosixPath(prefix) / path.relative_to(source).as_posix()): path for path in paths})


def _tar(paths: Mapping[str, Path]) -> bytes:
    """A tar of files and folders by name, owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, path in paths.items():
            tar.add(path, name, recursive=False, filter=_of_root)
    return buffer.getvalue()


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    # a deep copy has its archive in it, with all earlier members and theirs: twice as much with each file
    return member.replace(uid=0, gid=0, uname="", gname="", deep=False)


def _harmless(member: tarfile.TarInfo, destination: str) -> tarfile.TarInfo | None:
    """The member, or None to leave it out: an agent may have made links and devices that tar refuses to unpack.

    A hard link to one of those would be unpacked as what it links to, without this filter.
    """
    try:
        kept = transfer_tar_filter(member, destination)
    except tarfile.FilterError:
        return None
    return None if member.islnk() and not _is_file(f"{destination}/{member.linkname}") else kept


def _is_file(path: str) -> bool:
    """Whether a file was unpacked there, not a link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _unpack(archive: IO[bytes], target: Path) -> bool:
    """Whether the archive was complete; unpacks it."""
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            tar.extractall(target, filter=_harmless)
    except tarfile.TarError:
        return False
    return True


def _unpack_file(archive: IO[bytes], source: str, target: Path) -> None:
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        member = tar.next()
        content = tar.extractfile(member) if member is not None and member.isfile() else None
        if content is None:
            raise FileNotFoundError(f"{source} is not a file")
        with target.open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
