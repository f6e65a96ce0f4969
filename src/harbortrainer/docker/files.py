"""Copies files into and out of a container.

Small folders are read and written from outside (inside.py), where that can be. Others go in through the open shell, at
a tenth of the cost of the daemon's archive call, which does the rest: what is large, and where the container lacks the
programs. What comes out comes by the daemon (archive.py): the agent may have replaced the container's programs.
"""

import base64
import contextlib
import gzip
import io
import shlex
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from harbortrainer.docker.archive import fetch_file, fetch_folder
from harbortrainer.docker.command import IN_SHELL
from harbortrainer.docker.daemon import call, engine
from harbortrainer.docker.inside import Unusual, copy_in, copy_out
from harbortrainer.docker.shell import Shells

MAX_INLINE_UPLOAD = 128 * 1024  # base64 characters; twice as many cost as much as an archive call
SHELL_SEC = 60.0  # for a transfer through the shell; after that the daemon's archive call does it


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
        """Copy the contents of `source` into `target`, without links and special files.

        Raises FileNotFoundError, RuntimeError when too large.
        """
        target.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(Unusual):
            return await call(copy_out, self._container, source, target)
        await call(fetch_folder, self._container, source, target)

    async def download_file(self, source: str, target: Path) -> None:
        """Copy one file to `target`, or into it when it is a directory. Raises FileNotFoundError."""
        await call(fetch_file, self._container, source, target)

    async def _succeeds(self, command: str) -> bool:
        """False, too, when it does not end: the agent may have replaced its programs, and may act still."""
        try:
            output = await self._shells.run(f"{IN_SHELL}\n{command}", user="root", seconds=SHELL_SEC)
        except TimeoutError:
            return False
        return output.return_code == 0

    async def _put(self, archive: bytes) -> None:
        await call(engine().put_archive, self._container, "/", archive)


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
