"""Task directories on this disk: found where they are, or fetched from git and Harbor's registry."""

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING

from harbortrainer.durable.files import cache_folder, replace_text
from harbortrainer.errors import UserError
from harbortrainer.stopping import daemon_future
from harbortrainer.tasks.folders import digest, looks_like_task

if TYPE_CHECKING:
    from harbor.registry.client.base import BaseRegistryClient

DIGESTS = "DIGESTS"  # beside fetched tasks: a line `SHA256  NAME` for each, and their origin
DATASET = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[^/@]+@[^/@]+")  # NAME@VERSION and ORG/NAME@VERSION of a registry
_HOST = re.compile(r"\w+://[^/]*|[^/:]*:")  # of https://USER@HOST/PATH and USER@HOST:PATH
_log = logging.getLogger("harbortrainer")
_OFFLINE = "this needs the internet, or give a folder that holds the tasks already"


def find_folder(given: str) -> tuple[str, str]:
    """Return the folder and version of one source."""
    folder = Path(given).expanduser()
    cache = cache_folder("sources")
    if folder.is_dir():
        check_digests(folder)
        return given, ""
    if given.startswith("git+"):
        path, commit = fetch_git(given, cache)
        return str(path), commit
    if not DATASET.fullmatch(given):
        return given, ""  # `task_paths` reports the missing folder
    path = cache / "registry" / given
    if path.is_dir():
        check_digests(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        fetch_dataset(given, None, path)
    return str(path), given


def fetch_git(given: str, cache: Path) -> tuple[Path, str]:
    """`git+URL[@REV][#FOLDER]` -> folder of tasks and commit. Raises UserError.

    Each commit has a folder in the cache that never changes, since other runs may use it. A full commit is fetched
    once. When a fetch fails, the commit fetched last for the revision is used, with a warning.
    """
    address, _, folder = given.removeprefix("git+").partition("#")
    url, revision = _split(address)
    place = cache / "git" / hashlib.sha256(url.encode()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = len(revision) == 40 and (place / revision).is_dir()
        commit = revision if known else _fetched(given, place / "store.git", url, revision or "HEAD")
        if not (place / commit).is_dir():
            _make_tree(given, place, commit)
    if not (place / commit / folder).is_dir():
        raise UserError(f"{given}: no folder {folder} at commit {commit[:12]}; name one of the repository after #")
    return place / commit / folder, commit


def _split(address: str) -> tuple[str, str]:
    """URL and revision, "" = none. The revision, which may have slashes, is behind the last @ of the path."""
    host = _HOST.match(address)
    at = address.rfind("@", host.end() if host else 0)
    if at <= 0 or address[at - 1] == "/" or Path(address.removeprefix("file://")).exists():
        return address, ""
    return address[:at], address[at + 1 :]


def fetch_dataset(name: str, registry: str | None, folder: Path) -> str:
    """Fetch all tasks of a DATASET into `folder`, which must not exist, with their DIGESTS; returns a summary.

    When another process fetched it meanwhile, its folder is used. `registry`: JSON file or URL; None = Harbor's.
    Raises UserError when it is not found or cannot be reached.
    """
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        expected = daemon_future(asyncio.run, _download(name, registry, partial)).result()  # a loop may run here
        found = [path for path in sorted(partial.iterdir()) if looks_like_task(path)]
        if not expected or len(found) != expected:
            raise UserError(f"{name}: {len(found)} of {expected} tasks were downloaded; try again")
        lines = [f"{digest(path)}  {path.name}" for path in found]
        replace_text(partial / DIGESTS, "\n".join([f"# {name} of {registry or 'Harbor registry'}", *lines, ""]))
        _put(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return f"{name}, {len(found)} tasks"


def check_digests(folder: Path) -> None:
    """Check that fetched tasks are unchanged. Raises UserError naming the first that differ."""
    file = folder / DIGESTS
    if not file.is_file():
        return
    lines = [line.split(maxsplit=1) for line in file.read_text().splitlines() if line and not line.startswith("#")]
    wrong = [name for known, name in lines if not (folder / name).is_dir() or digest(folder / name) != known]
    if wrong:
        raise UserError(f"{folder}: not as it was fetched: {', '.join(wrong[:3])}; remove it and fetch it again")


def _put(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not (folder / DIGESTS).is_file():
            raise
        check_digests(folder)


async def _download(name: str, registry: str | None, folder: Path) -> int:
    import httpx
    import requests
    from harbor.registry.client.base import UnavailableDatasetTasksError
    from postgrest.exceptions import APIError
    from storage3.utils import StorageException

    try:
        client = _client(name, registry)
        folder.mkdir(parents=True)
        return len(await _first_fault(client.download_dataset(name, output_dir=folder, export=True)))
    except (httpx.HTTPError, requests.RequestException, OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{name}: cannot be fetched ({_line(error)}); {_OFFLINE}") from error
    except (APIError, StorageException, UnavailableDatasetTasksError) as error:  # of ORG/NAME
        raise UserError(f"{name}: {_line(error)}") from error
    except (ValueError, RuntimeError) as error:  # Harbor wraps every other fault of its registry in one of these
        if isinstance(reason := error.__context__, httpx.HTTPError | OSError):
            raise UserError(f"{name}: cannot be fetched ({_line(reason)}); {_OFFLINE}") from error
        raise UserError(f"{name}: {_line(error)}") from error


def _client(name: str, registry: str | None) -> "BaseRegistryClient":
    """As Harbor's own command chooses it: a name with an organisation is in its newer registry."""
    from harbor.registry.client.factory import RegistryClientFactory
    from harbor.registry.client.package import PackageDatasetClient

    if registry is None:
        return PackageDatasetClient() if "/" in name else RegistryClientFactory.create()
    if "://" in registry:
        return RegistryClientFactory.create(registry_url=registry)
    return RegistryClientFactory.create(registry_path=Path(registry).expanduser())


async def _first_fault[T](work: Awaitable[T]) -> T:
    """The result of `work`. Of several faults at once, raises the first."""
    try:
        return await work
    except ExceptionGroup as group:
        fault: Exception = group
    while isinstance(fault, ExceptionGroup):
        fault = fault.exceptions[0]
    raise fault  # after the block, which would become its context


def _fetched(given: str, store: Path, url: str, revision: str) -> str:
    """Fetch `revision` of `url` into `store`; returns its commit, or the one fetched last. Raises UserError."""
    kept = f"refs/fetched/{hashlib.sha256(revision.encode()).hexdigest()[:16]}"
    _git(given, "init", "--quiet", "--bare", str(store))
    in_store = ("--git-dir", str(store))
    failure = None
    try:
        _git(given, *in_store, "fetch", "--quiet", "--depth", "1", url, f"+{revision}:{kept}")
    except UserError as error:
        if not _git(given, *in_store, "for-each-ref", kept):
            raise
        failure = error
    commit = _git(given, *in_store, "rev-parse", f"{kept}^{{commit}}").strip()
    if failure is not None:
        _log.warning("%s; the copy in the cache is used, of commit %s", failure, commit[:12])
    return commit


def _make_tree(given: str, place: Path, commit: str) -> None:
    """Check out a commit of the store into a folder of its own, which appears complete or not at all."""
    growing = place / "growing"
    shutil.rmtree(growing, ignore_errors=True)  # of a process that was killed
    growing.mkdir()
    in_store = ("--git-dir", str(place / "store.git"), "--work-tree", str(growing))
    _git(given, *in_store, "checkout", "--quiet", "--force", commit, "--", ":/")
    growing.rename(place / commit)


def _git(given: str, *arguments: str) -> str:
    """What git prints. Raises UserError when it is not installed or fails."""
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(["git", *arguments], env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError(f"{given}: git is not installed; install it, or give a folder") from None
    if done.returncode != 0:
        raise UserError(f"{given}: {' '.join(done.stderr.split())[:300]}; {_OFFLINE}")
    return done.stdout


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
