"""What users allow agents to change and leave, beyond what a task asks for: a list beside the tasks."""

import logging
import posixpath
import re
from collections.abc import Collection
from pathlib import Path

from harbortrainer.docker.integrity.change import is_made_anew
from harbortrainer.durable.listed import Listed, digest, quoted, read_list, unquoted, write_list

ALLOWED_FILE = "allowed.txt"
FORMS = "give /PATH, /FOLDER/ for all that is below it, tcp:PORT, unix:NAME or process:NAME"
_HEAD = """# What agents may change and leave besides what each task asks for: task, its digest, path, port or process.
# Made by: python -m src.tasks allow
"""
_DEVICES = "/dev"
_THING = re.compile(r"tcp:(?P<port>\d{1,5})|(?:unix|process):.+|/.*", re.DOTALL)
_log = logging.getLogger("harbortrainer")
_told: set[Path] = set()


def allowed(task: Path) -> frozenset[str]:
    """Return what users allow for a task: `/PATH`, `/FOLDER/` (and all below), `tcp:PORT`, `unix:NAME`, `process:NAME`.

    Blocks.

    Lines for another content of the task do not count; a warning says so once.
    """
    listed = _of(task)
    if not listed:
        return frozenset()
    content = digest(task)
    if task not in _told and any(one.digest not in ("", content) for one in listed):
        _told.add(task)
        _log.warning("task %s: %s has lines for an earlier version of it; allow them again", task.name, ALLOWED_FILE)
    return frozenset(unquoted(one.text) for one in listed if one.digest in ("", content))


def allow(task: Path, things: Collection[str]) -> None:
    """Make `things` what is allowed for the task as it is now, in place of all lines that it has. Raises DiskFault."""
    others = [one for one in read_list(_file(task)) if one.name != task.name]
    content = digest(task) if things else ""
    own = [Listed(task.name, content, quoted(thing)) for thing in sorted(things)]
    write_list(_file(task), _HEAD, [*others, *own])


def outdated(task: Path) -> frozenset[str]:
    """Return what was allowed for another content of the task."""
    content = digest(task)
    return frozenset(unquoted(one.text) for one in _of(task) if one.digest not in ("", content))


def thing_of(cause: str) -> str:
    """Return what allows a cause, by its name in a verdict."""
    kind, _, name = cause.partition(" ")
    kind = "tcp" if kind == "udp" else kind  # a port is allowed for both
    return f"{kind}:{name}" if kind in ("tcp", "unix", "process") else cause


def refusal(thing: str) -> str:
    """Return why a thing cannot be allowed, with a fix; "" = it can."""
    found = _THING.fullmatch(thing)
    if found is None:
        return f"no absolute path; {FORMS}"
    if found["port"] is not None and not 0 < int(found["port"]) < 65536:
        return "no port; give tcp:PORT with a PORT from 1 to 65535"
    path = thing.removesuffix("/")
    if thing.startswith("/") and posixpath.normpath(thing) != path:
        return "no file or folder below / in its shortest form; give one such as /etc/motd or /opt/tool/"
    if is_made_anew(path) and thing != _DEVICES:
        return "verification makes it anew, or it is no file of the container; leave it out"
    return ""


def _of(task: Path) -> list[Listed]:
    return [one for one in read_list(_file(task)) if one.name == task.name]


def _file(task: Path) -> Path:
    return task.parent / ALLOWED_FILE
