"""Copies files into and out of a container. All functions block.

Small folders are read and written from outside (inside.py), where that can be. The daemon's archive calls (put_archive,
get_archive) do the rest: they run no program of the container, which the agent may have replaced.
"""

import contextlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from docker.errors import NotFound
from harbor.environments.base import transfer_tar_filter

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.inside import Unusual, copy_in, copy_out

MAX_DOWNLOAD = 2 * 1024**3
_SPOOL = 8 * 1024 * 1024


def upload_dir(container: str, source: Path, target: str) -> None:
    """Put the contents of `source` into `target`, made if missing; owned by root, modes kept."""
    with contextlib.suppress(Unusual):
        return copy_in(container, source, target)
    engine().put_archive(container, "/", _pack(source, target.strip("/")))


def upload_file(container: str, source: Path, target: str) -> None:
    """Put a file at `target`, owned by root, its mode kept."""
    engine().put_archive(container, "/", _tar({target.strip("/"): source.resolve()}))


def download_dir(container: str, source: str, target: Path) -> None:
    """Copy the contents of `source` into `target`, without special files and links that lead outside.

    Raises FileNotFoundError, RuntimeError when too large.
    """
    target.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(Unusual):
        return copy_out(container, source, target)
    with _archived(container, source.rstrip("/") + "/.") as archive:
        try:
            _unpack(archive, target)
        except tarfile.TarError as error:
            raise RuntimeError(f"{source} in container {container} came as a broken archive") from error


def download_file(container: str, source: str, target: Path) -> None:
    """Copy one file to `target`, or into it when it is a directory. Raises FileNotFoundError."""
    target = target / PurePosixPath(source).name if target.is_dir() else target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _archived(container, source) as archive, tarfile.open(fileobj=archive, mode="r:") as tar:
        member = tar.next()
        content = tar.extractfile(member) if member is not None and member.isfile() else None
        if content is None:
            raise FileNotFoundError(f"{source} is not a file")
        with target.open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)


def _archived(container: str, source: str) -> IO[bytes]:
    """The daemon's archive, which the caller closes."""
    try:
        chunks, _ = engine().get_archive(container, source)
    except NotFound as error:
        raise FileNotFoundError(f"no {source} in container {container}") from error
    spool = tempfile.SpooledTemporaryFile(_SPOOL)  # noqa: SIM115 the caller closes it
    for chunk in chunks:
        spool.write(chunk)
        if spool.tell() > MAX_DOWNLOAD:
            spool.close()
            raise RuntimeError(f"{source} in container {container} is larger than {MAX_DOWNLOAD >> 30} GiB")
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


def _unpack(archive: IO[bytes], target: Path) -> None:
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        tar.extractall(target, filter=_harmless)
