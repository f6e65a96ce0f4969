"""Copies files into and out of a container.

Folders are read and written from outside (root_folder.py), where that can be, and all else by the daemon (archive.py):
the agent may have replaced the container's own programs. All functions block.
"""

import contextlib
import logging
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

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
from harbortrainer.docker.daemon import engine

REWARDS = (EnvironmentPaths().reward_json_path.name, EnvironmentPaths().reward_text_path.name)
_LOGS = (EnvironmentPaths.agent_dir, EnvironmentPaths.verifier_dir)  # no verifier elsewhere grades them
_log = logging.getLogger("harbortrainer")


def fetch(container: str, source: str, target: Path) -> None:
    """Copy the contents of the container's folder into `target`: all of it, of logs what LOGS allow.

    Raises FileNotFoundError, TooMuch; RuntimeError for what comes broken.
    """
    if any(PurePosixPath(source).is_relative_to(log) for log in _LOGS):
        fetch_logs(container, source, target)
    else:
        fetch_folder(container, source, target)


def fetch_logs(container: str, source: str, target: Path, chosen: Chosen = all_files) -> None:
    """Copy what LOGS allow of the container's folder into `target`, rewards before all else.

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


def upload_dir(container: str, source: Path, target: str) -> None:
    """Put the contents of `source` into `target`, made if missing; owned by root, modes kept."""
    with contextlib.suppress(Unusual):
        return copy_in(container, source, target)
    paths = sorted(source.rglob("*")) or [source]
    _put(container, {str(PurePosixPath(target) / path.relative_to(source).as_posix()): path for path in paths})


def upload_file(container: str, source: Path, target: str) -> None:
    """Put a file at `target`, or into it when it is a directory or ends with /."""
    into = target.endswith("/") or is_folder(container, target)
    _put(container, {f"{target}/{source.name}" if into else target: source.resolve()})


def _put(container: str, paths: Mapping[str, Path]) -> None:
    """Put files and folders at these paths, owned by root, by a file: their archive may be larger than memory."""
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name, path in paths.items():
                tar.add(path, name, recursive=False, filter=_of_root)
        packed.seek(0)
        engine().put_archive(container, "/", packed)


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    # a deep copy has its archive in it, with all earlier members and theirs: twice as much with each file
    return member.replace(uid=0, gid=0, uname="", gname="", deep=False)
