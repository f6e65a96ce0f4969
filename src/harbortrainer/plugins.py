"""Finds the parts of a run by name: this package's own, an installed package's (entry points), or a user's file."""

import functools
import hashlib
import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from harbortrainer.errors import UserError
from harbortrainer.text import meant

NAME = "harbortrainer"  # of the distribution; its groups of entry points are NAME.GROUP
Group = Literal["venues", "agents", "wires", "hosts"]
FORM = "give MODULE:NAME or path/to/FILE.py:NAME"
SHORT = 12  # characters of a digest
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"  # of a checkout, which need not be installed
_offered: dict[tuple[Group, str], object] = {}


@dataclass(frozen=True, slots=True)
class Brought:
    """An object that a name led to. `given`: the setting as typed; `source`: version and digest of foreign code."""

    given: str
    source: str
    value: Any


def offer(group: Group, name: str, value: object) -> None:
    """Give an object of this process a name that settings can use. Raises UserError when another one has it."""
    if _offered.get((group, name)) is value:
        return
    if name in known(group) or ":" in name or not name:
        raise UserError(f"{group}: the name {name!r} is taken or has a colon; choose another")
    _offered[group, name] = value
    plugin.cache_clear()


def known(group: Group) -> list[str]:
    """Return names of all parts of a group, this package's own first."""
    names = [one.name for one, _ in _entries(group, tuple(sys.path))]
    return list(dict.fromkeys([*names, *(name for its, name in _offered if its == group)]))


def unknown(group: Group, field: str, name: str, *others: str) -> str:
    """Return the message for a name that no part of a group has. `others`: values of the setting that name no part."""
    names = [*others, *known(group)]
    parts = [f"{field}={name}: unknown", meant(name, names), f"one of {', '.join(names)}", f"or {FORM}"]
    return "; ".join(filter(None, parts))


@functools.cache
def plugin(group: Group, field: str, name: str) -> Brought:
    """Return the part `name` of a group. `field`: the setting that names it.

    Raises UserError: nothing has this name, two packages claim it, no such module, file or object. An error within a
    module is raised as it is.
    """
    given = f"{field}={name}"
    if (value := _offered.get((group, name))) is not None:
        return Brought(given, _source(sys.modules[type(value).__module__]), value)
    if ":" in name:
        return bring(field, name)
    found = [pair for pair in _entries(group, tuple(sys.path)) if pair[0].name == name]
    if not found:
        raise UserError(unknown(group, field, name))
    if len(found) > 1:
        raise UserError(f"{given}: {' and '.join(owner for _, owner in found)} have one; remove one, or {FORM}")
    entry, owner = found[0]
    value = entry.load()
    return Brought(given, "" if owner == NAME else _source(sys.modules[entry.module], owner), value)


@functools.cache
def bring(field: str, text: str) -> Brought:
    """Return the object that a setting names by MODULE:NAME or FILE.py:NAME.

    Raises UserError: no such module, file or object. An error within the module is raised as it is.
    """
    given = f"{field}={text}"
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UserError(f"{given}: {FORM}")
    module = _of_file(given, place) if place.endswith(".py") else _of_module(given, place)
    if (found := getattr(module, name, None)) is None:
        raise UserError(f"{given}: {place} has no {name}")
    return Brought(given, _source(module), found)


def name_of(field: str, value: object) -> str:
    """Get name by which a setting finds a function or class of a module or script. Raises UserError where none does."""
    name, module = getattr(value, "__qualname__", ""), sys.modules.get(getattr(value, "__module__", ""))
    if module is None or getattr(module, name, None) is not value or getattr(module, "__file__", None) is None:
        raise UserError(f"{field}={value!r}: give a function or class that stands by itself in a file")
    return f"{module.__file__ if module.__name__ == '__main__' else module.__name__}:{name}"


def check_same(found: Mapping[str, Brought], before: Mapping[str, str]) -> None:
    """Check that a continued run has the code that it began with, as its record `before` says. Raises UserError."""
    for field, one in found.items():
        if before.get(field, one.source) != one.source:
            raise UserError(
                f"{one.given}: its code has changed since the run began ({before[field]}, now {one.source}); put the "
                "former code back, or start a new run"
            )


@functools.cache  # it reads what every installed package says of itself
def _entries(group: Group, _path: tuple[str, ...]) -> list[tuple[metadata.EntryPoint, str]]:
    """Entry points of a group with their distributions, this package's own first: of a checkout from pyproject.toml."""
    full, found = f"{NAME}.{group}", list(metadata.entry_points(group=f"{NAME}.{group}"))
    pairs = [(one, one.dist.name) for one in found if one.dist is not None]
    if _PROJECT.is_file() and (project := tomllib.loads(_PROJECT.read_text())["project"])["name"] == NAME:
        own = [(metadata.EntryPoint(name, path, full), NAME) for name, path in project["entry-points"][full].items()]
        pairs = [*own, *(pair for pair in pairs if pair[1] != NAME)]
    return sorted(pairs, key=lambda pair: pair[1] != NAME)


def _of_file(given: str, place: str) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if (main := getattr(sys.modules["__main__"], "__file__", None)) and Path(main).resolve() == path:
        return sys.modules["__main__"]  # the script that runs
    name = f"{NAME}_brought_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:SHORT]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{given}: there is no file {path}; {FORM}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _of_module(given: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the module lacks another one
        raise UserError(f"{given}: there is no module {error.name}; install it, or {FORM}") from None


def _source(module: ModuleType, distribution: str = "") -> str:
    """`NAME VERSION sha256:…`: the module's distribution, if it has one, and its file, or all files of its package."""
    file = Path(str(module.__file__))
    files = sorted(file.parent.rglob("*.py")) if (file.parent / "__init__.py").is_file() else [file]
    sha = hashlib.sha256()
    for one in files:
        sha.update(f"{one.relative_to(file.parent)}\0".encode() + hashlib.sha256(one.read_bytes()).digest())
    name = distribution or module.__name__.partition(".")[0]
    try:
        version = f"{name} {metadata.version(name)} "
    except metadata.PackageNotFoundError:  # a file, or a folder that was not installed
        version = ""
    return f"{version}sha256:{sha.hexdigest()[:SHORT]}"
