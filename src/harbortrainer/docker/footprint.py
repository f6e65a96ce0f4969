"""Keeps the footprints of tasks' solutions on disk, and reads from a task's files what the rule needs to know."""

import asyncio
import functools
import hashlib
import json
import logging
import re
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath

from docker.errors import DockerException

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import Image, content_digest
from harbortrainer.docker.system import SYSTEM, Footprint, VerifierFacts, is_tool
from harbortrainer.durable.files import cache_folder, make_folder, replace_text

FOOTPRINT = "footprint.json"  # in the folder of a trial that records one
_METHOD = 1  # raise it when footprints are recorded in another way
_CHANGES_TO = re.compile(r"""(?:\bcd\s+|\bpushd\s+|cwd\s*=\s*)["']?(/[\w./+-]*)""")
_RUNS_FROM = re.compile(r"""(?<![\w$}./])([\w./+-]+)/bin/([\w.+-]+)""")
_RUNS_UV = re.compile(r"\buv\s+(run|sync|pip|add|venv)\b")
_IMPORTS = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_]\w*)", re.MULTILINE)
_INSTALLS = re.compile(r"^.*(?:\bpip3? install|\buv (?:add|pip install)|\buvx |--with|\s-w ).*$", re.MULTILINE)
_OFTEN = "requests numpy pandas yaml psutil scipy PIL cv2 torch sklearn bs4 lxml httpx pexpect toml"
_SCRIPTS = (".sh", ".bash", ".py", "")
N_AT_ONCE = 4  # solutions
_MOST_TEXT = 1024 * 1024  # characters of one file
_log = logging.getLogger("harbortrainer")
_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()
_under_way: dict[str, asyncio.Task[Footprint | None]] = {}
_failed: set[str] = set()


def footprint_key(task: Path, image: Image) -> str | None:
    """Digest of the image, the solution and task.toml; None = the task has no solution. Blocking."""
    solutions = [one for one in (task / "solution", *sorted(task.glob("steps/*/solution"))) if one.is_dir()]
    if not solutions:
        return None
    parts = [str(_METHOD), engine().inspect_image(image.reference)["Id"], (task / "task.toml").read_text()]
    parts += [f"{one.relative_to(task)} {content_digest(one)}" for one in solutions]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def stored(key: str) -> Footprint | None:
    try:
        found = json.loads(_file(key).read_text())
        return Footprint(found["paths"], frozenset(found["made"]))
    except (OSError, ValueError, KeyError):
        return None


def store(key: str, footprint: Footprint) -> None:
    """Raises DiskFault."""
    _write(key, dump(footprint, key))


def dump(footprint: Footprint, key: str) -> str:
    """As JSON."""
    known = {"key": key, "made": sorted(footprint.made), "paths": dict(footprint.paths)}
    return json.dumps(known, indent=0, sort_keys=True)


def adopt(file: Path) -> None:
    """Keep the footprint in FOOTPRINT of a trial whose solution earned its reward. Raises DiskFault."""
    if file.is_file():
        text = file.read_text()
        _write(json.loads(text)["key"], text)


def _write(key: str, text: str) -> None:
    make_folder(_file(key).parent)
    replace_text(_file(key), text)


async def learned(key: str, task: str, learn: Callable[[], Awaitable[Footprint]]) -> Footprint | None:
    """The footprint from disk, or of `learn`, which runs once for all callers; None = it failed.

    A failure gives one warning and is not tried again by this process. Cancelling one caller leaves `learn` running.
    """
    if (known := await asyncio.to_thread(stored, key)) is not None or key in _failed:
        return known
    running = _under_way.get(key)
    if running is None or running.done() or running.get_loop() is not asyncio.get_running_loop():
        running = asyncio.create_task(_learn(key, task, learn), name=f"footprint of {task}")
        _under_way[key] = running
    return await asyncio.shield(running)


async def _learn(key: str, task: str, learn: Callable[[], Awaitable[Footprint]]) -> Footprint | None:
    try:
        async with _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(N_AT_ONCE)):
            footprint = await learn()
    except (RuntimeError, OSError, ValueError, TimeoutError, DockerException) as error:
        _failed.add(key)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        _log.warning(
            "task %s: its solution could not run to show which system paths the task needs (%s); "
            "every changed system path is put back before verification",
            task, reason,
        )  # fmt: skip
        return None
    await asyncio.to_thread(store, key, footprint)
    return footprint


def _file(key: str) -> Path:
    return cache_folder("footprints") / f"{key}.json"


@functools.cache
def verifier_facts(task: Path) -> VerifierFacts:
    """Where the task's tests work, which installed modules they import, from where they run programs. Blocking."""
    texts = {
        file: file.read_text(errors="replace")[:_MOST_TEXT]
        for root in (task, *task.glob("steps/*"))
        for file in sorted((root / "tests").rglob("*"))
        if file.is_file() and file.suffix in _SCRIPTS
    }
    every = "\n".join(texts.values())
    prefixes = {prefix for prefix, name in _RUNS_FROM.findall(every) if is_tool(name) or name == "activate"}
    runs_uv = _RUNS_UV.search(every) is not None
    if runs_uv:
        prefixes.add(".venv")
    installed = {word for line in _INSTALLS.findall(every) for word in re.findall(r"[A-Za-z_]\w*", line)}
    imports = {name for file, text in texts.items() if file.suffix == ".py" for name in _IMPORTS.findall(text)}
    return VerifierFacts(
        frozenset(str(PurePosixPath(folder)) for folder in _CHANGES_TO.findall(every)),
        frozenset(prefix for prefix in prefixes if prefix not in SYSTEM and not prefix.startswith("/usr/")),
        runs_uv=runs_uv,
        imports=frozenset(imports & (installed | {*_OFTEN.split()})),
    )
