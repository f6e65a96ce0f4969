"""The rule on what lies beside the work: modules, settings and repositories that verification's programs read there.

A name alone says little there, since the work has names of its own. Contents and the task's tests decide.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from harbortrainer.docker.layer import Change, Kind, Layer
from harbortrainer.docker.names import (
    FOLDERS_BESIDE,
    IMPORTABLE,
    SITE,
    STANDARD,
    git_runs,
    is_runner,
    loads_plugins,
)
from harbortrainer.docker.system import SETTINGS, Place

_NO_ENTRY = ".put-away"  # exists nowhere
_INI_HOOK = re.compile(r"^\s*\[\s*(tool:)?pytest\s*\]", re.MULTILINE)
_RECORDS = (".dist-info", ".egg-info")  # of Python packages, also in a working directory
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")  # make takes the first
_GIT_SETTINGS = ("config", "config.worktree")


def changes_beside(layer: Layer, place: Place) -> Iterator[Change]:
    """Every change there that verification could execute or load."""
    for folder in place.beside:
        start = folder.rstrip("/")
        yield from layer.changes(f"{start}/{_NO_ENTRY}")  # the folder leads elsewhere
        for name in layer.names(folder):
            yield from _of_entry(f"{start}/{name}", place, layer)
    if place.tests.runs_git:
        for folder in place.folders:
            for repository in layer.find(folder, ".git"):
                yield from _of_repository(repository, layer)


def _of_entry(path: str, place: Place, layer: Layer) -> Iterator[Change]:
    name = PurePosixPath(path).name
    if name in FOLDERS_BESIDE and place.read_beside.fullmatch(name):
        yield from (one for one in layer.changes(path) if one.kind is not Kind.REMOVED)
    elif name.lower().endswith(_RECORDS):
        for one in layer.changes(f"{path}/entry_points.txt"):
            if _counts(one, layer, loads_plugins):
                yield one
    elif may_be_beside(name, place):
        one = next(iter(layer.changes(path)), None)
        if one and one.path == path and is_beside(one, place, layer):
            yield one


def _of_repository(path: str, layer: Layer) -> Iterator[Change]:
    """A repository's hooks, settings that run programs, and links to others. `path`: its .git."""
    first = next(iter(layer.changes(path)), None)
    if first and first.path == path and not first.folder:  # a file or link that names another place
        if first.kind is not Kind.REMOVED:
            yield first
        return
    parts = [path, *(str(PurePosixPath(one).parent) for one in layer.find(f"{path}/modules", "config"))]
    for part in parts:
        for name in _GIT_SETTINGS:
            yield from (one for one in layer.changes(f"{part}/{name}") if _counts(one, layer, git_runs))
        for one in (*layer.changes(f"{part}/hooks"), *layer.changes(f"{part}/commondir")):
            if one.kind is not Kind.REMOVED and not one.folder and not one.path.endswith(".sample"):
                yield one


def _counts(change: Change, layer: Layer, harms: Callable[[bytes], bool]) -> bool:
    """Whether a file's content harms; that of a link is not known."""
    if change.shallow or change.kind is Kind.REMOVED:
        return change.shallow
    content = layer.content(change.path)
    return content is None or harms(content)


def is_beside(change: Change, place: Place, layer: Layer) -> bool:
    """Whether Python, pytest, uv or another program of the tests would read it because it lies where it does."""
    path = PurePosixPath(change.path)
    if str(path.parent) not in place.beside or change.kind is Kind.REMOVED:
        return False
    if place.read_beside.fullmatch(path.name):
        return True
    if place.tests.runs_uv and path.name in ("pyproject.toml", "uv.lock"):
        return True
    if path.name in SETTINGS:
        content = layer.content(change.path)
        return content is None or _steers(path.name, content)
    if change.kind is not Kind.ADDED:
        return False
    return _hides_makefile(path, place, layer) or _shadows(change, place, layer)


def may_be_beside(name: str, place: Place) -> bool:
    """Whether an entry of this name can matter beside a working directory: the quick test."""
    if name in SETTINGS or name in ("uv.lock", *_MAKEFILES) or place.read_beside.fullmatch(name):
        return True
    return _names_module(name.partition(".")[0], place)


def _hides_makefile(path: PurePosixPath, place: Place, layer: Layer) -> bool:
    """Whether make takes it instead of the image's."""
    if not place.tests.runs_make or path.name not in _MAKEFILES[:2]:
        return False
    later = _MAKEFILES[_MAKEFILES.index(path.name) + 1 :]
    return layer.image is None or any(layer.image.find(str(path.with_name(name))) for name in later)


def _shadows(change: Change, place: Place, layer: Layer) -> bool:
    name = PurePosixPath(change.path).name
    if change.folder:  # without __init__, it comes after every other module of the name
        package = any(inside.startswith("__init__.") for inside in layer.names(change.path))
        return is_runner(name) or name in SITE or (package and _names_module(name, place))
    match = IMPORTABLE.fullmatch(name)
    return match is not None and _names_module(match[1], place)


def _names_module(stem: str, place: Place) -> bool:
    """Whether verification may import a module of this name from elsewhere."""
    return stem in STANDARD | place.tests.imports or is_runner(stem)


def _steers(name: str, content: bytes) -> bool:
    """Whether a settings file steers pytest or uv, or replaces the tool that builds the project."""
    text = content.decode(errors="replace")
    if name != "pyproject.toml":
        return _INI_HOOK.search(text) is not None
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return True
    tool, build = settings.get("tool"), settings.get("build-system")
    tools = tool.keys() & {"pytest", "uv"} if isinstance(tool, dict) else set[str]()
    return bool(tools) or (isinstance(build, dict) and "backend-path" in build)
