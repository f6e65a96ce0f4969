"""The rule: which changed paths of a container are put back before verification. Pure: sets of paths, no I/O.

A system path is one that verification could execute or load: programs, libraries, interpreters' folders, the
configuration of loader, shells and package managers, and what lies beside the work (`docker.beside`). The task's own
solution says which of them its work may change: its footprint.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from harbortrainer.docker.layer import FOLDER, GONE, LINK, PROGRAM, Change, Kind, Layer
from harbortrainer.docker.names import (
    ALWAYS_BESIDE,
    BELOW_OPT,
    ETC,
    HOME,
    HOME_PARTS,
    HOME_SETTINGS,
    INTERPRETERS,
    JS_RUNNERS,
    PREFIX_PARTS,
    PROGRAMS,
    SCHEDULES,
    SITE,
    STORES,
    SYSTEM,
    UPGRADED,
    WORK,
    home_paths,
    is_runner,
    is_tool,
)

PRELOAD, CACHE, ACCOUNTS, PACKAGES = "/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/passwd", "/var/lib/dpkg/status"
_LIBRARY = re.compile(r"(ld[.-]|lib).*\.so(\.[\d.]+)?")
_BASES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
_HARDWARE = re.compile(r"(glibc-hwcaps|haswell|tls|x86_64|avx512_1)(/.*)?")
LIBRARY_DIRS = (*_BASES, *(f"{base}/{triplet}" for base in _BASES for triplet in _TRIPLETS))
_LIBRARY_PATH = re.compile(rb"/[^\0]*\.so[^\0]*")
_GO_MODULES = "/go/pkg/mod"  # in Go's own images
SETTINGS = frozenset(["pyproject.toml", "tox.ini", "setup.cfg"])
_ROUTINE = re.compile(
    r".*/__pycache__(/.*)?|/var/cache/.*|/var/lib/apt/(lists|periodic)(/.*)?|/.*/\.cache/(pip|go-build)(/.*)?"
)
_GENERIC = re.compile(
    r"site-packages|dist-packages|s?bin|lib(32|64|exec)?|python[\d.]*|perl[\d.]*|node_modules|share|include|local"
    r"|\.local|\.config|\.cache|etc|\w*\.d|alternatives|info|lists|opt|usr|glibc-hwcaps|\w+-linux-gnu|__pycache__"
)
_VERSION = re.compile(r"\d+(\.\d+)*([a-z]+\d+)*")


@dataclass(frozen=True)
class VerifierFacts:
    """What a task's tests tell. `folders`: where they change to or import from; `imports`: packages that they import.

    `prefixes`: folders with a bin/ from which they run a verifier's program, such as .venv. `path`: folders that their
    scripts add to PATH; `~` is a home. All three may be relative. `beside`: names that their programs read beside the
    work, as a regular expression. `users`: whose accounts verification uses besides root and the image's user.
    """

    folders: frozenset[str] = frozenset()
    prefixes: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()
    path: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    beside: str = ""
    runs_uv: bool = False  # within a project
    runs_git: bool = False
    runs_make: bool = False
    runs_js: bool = False


@dataclass(frozen=True)
class Place:
    """Facts of one container. `path`: folders of PATH; `homes`: of its accounts; `work`: the working directories.

    `libraries`: folders of LD_LIBRARY_PATH. `entrypoint`: programs by absolute path that a restart of the container
    runs. `services`: the image starts something that runs beside the agent.
    """

    path: tuple[str, ...] = ()
    homes: tuple[str, ...] = ("/root",)
    work: tuple[str, ...] = ("/",)
    libraries: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    services: bool = False
    tests: VerifierFacts = field(default_factory=VerifierFacts)

    @functools.cached_property
    def folders(self) -> tuple[str, ...]:
        """Working directories, and the folders that the tests work in."""
        found = {_joined(work, folder) for work in self.work for folder in self.tests.folders}
        return tuple(sorted({*self.work, *found}))

    @functools.cached_property
    def prefixes(self) -> tuple[str, ...]:
        """X for each X/bin of PATH, and virtual environments that the tests name."""
        found = {str(PurePosixPath(d).parent) for d in self.path if PurePosixPath(d).name in ("bin", "sbin")}
        found |= {_joined(place, prefix) for place in self.folders for prefix in self.tests.prefixes}
        return tuple(sorted(found - {*self.beside}))

    @functools.cached_property
    def beside(self) -> tuple[str, ...]:
        """Folders in which Python and pytest look for modules and settings: working directories and those above."""
        places = [PurePosixPath(place) for place in {"/", *self.folders, *self.homes}]
        return tuple(sorted({str(one) for place in places for one in (place, *place.parents)}))

    @functools.cached_property
    def tool_path(self) -> tuple[str, ...]:
        """Folders that the tests add to PATH: only their tools count there, since the work may have programs too."""
        found = {_joined(work, one) for work in self.work for one in self.tests.path if not one.startswith("~")}
        found |= {f"{home}{one[1:]}" for home in self.homes for one in self.tests.path if one.startswith("~")}
        return tuple(sorted(found))

    @functools.cached_property
    def read_beside(self) -> re.Pattern[str]:
        """Names of settings that verification reads from the folders of `beside`."""
        return re.compile(f"{ALWAYS_BESIDE.pattern}|{self.tests.beside}") if self.tests.beside else ALWAYS_BESIDE

    @functools.cached_property
    def js_runners(self) -> tuple[str, ...]:
        """Where JavaScript's test runners lie beside the work, if the tests run one."""
        places = self.folders if self.tests.runs_js else ()
        return tuple(f"{place.rstrip('/')}/node_modules/{name}" for place in places for name in JS_RUNNERS)

    @functools.cached_property
    def roots(self) -> tuple[str, ...]:
        """Folders and files below which changes are looked for; those of `beside` only by name."""
        found = [*SYSTEM, "/etc", "/opt", _GO_MODULES, *self.path, *self.libraries, *self.entrypoint, *self.js_runners]
        found += [f"{prefix}/{part}" for prefix in self.prefixes for part in PREFIX_PARTS]
        found += [f"{home.rstrip('/')}/{name}" for home in self.homes for name in home_paths()]
        found += [*self.tool_path, *(SCHEDULES if self.services else ())]
        return tuple(topmost(found))


def _joined(folder: str, path: str) -> str:
    return str(PurePosixPath(folder) / path)


@dataclass(frozen=True)
class Footprint:
    """System paths that the task's own solution changes, with the fingerprint that it leaves there."""

    paths: Mapping[str, str] = field(default_factory=dict)
    made: frozenset[str] = frozenset()  # folders that the image lacks

    @functools.cached_property
    def alike(self) -> frozenset[str]:
        """The paths with versions masked."""
        return frozenset(map(_masked, self.paths))

    @functools.cached_property
    def own(self) -> frozenset[str]:
        """Folders of its own: what lies below belongs to what the solution installed."""
        return frozenset(_masked(path) for path in self.made if not _GENERIC.fullmatch(PurePosixPath(path).name))

    def covers(self, path: str) -> bool:
        masked = _masked(path)
        return masked in self.alike or any(str(above) in self.own for above in PurePosixPath(masked).parents)


def is_system(change: Change, place: Place, layer: Layer) -> bool:
    """Whether verification could execute or load the changed path. `layer` reads what the container has there."""
    path = change.path
    if change.shallow:
        return True
    if WORK.fullmatch(path):
        return False
    if below(path, (*SYSTEM, *place.path, *place.js_runners)) or path in place.entrypoint or ETC.fullmatch(path):
        return True
    if path.startswith("/opt/") and not BELOW_OPT.isdisjoint(PurePosixPath(path).parts[2:]):
        return True
    if any(below(path, (f"{prefix}/{part}",)) for prefix in place.prefixes for part in PREFIX_PARTS):
        return True
    if below(path, place.tool_path) and (is_tool(PurePosixPath(path).name) or PurePosixPath(path).name in INTERPRETERS):
        return True
    if below(path, place.libraries):
        return ".so" in path or _in_hardware(path, place.libraries)
    if place.services and below(path, SCHEDULES):
        return True
    if change.kind is Kind.CHANGED and below(path, (_GO_MODULES,)):
        return True
    return any(_at_home(change, home, layer) for home in place.homes)


def is_routine(path: str) -> bool:
    """Caches that programs write as they run: put back without being named, and no reason to run the solution."""
    return _ROUTINE.fullmatch(path) is not None


def is_allowed(change: Change, footprint: Footprint, fingerprint: Callable[[str], str], place: Place) -> bool:
    """Whether the task's own solution changes the path too. `fingerprint`: of the container's entry."""
    path, known = change.path, footprint.paths.get(change.path)
    if change.shallow or _never(path, place):
        return False
    if known is None or not _guarded(change, place):
        return not _guarded(change, place) and (known is not None or footprint.covers(path))
    now = fingerprint(path)
    upgraded = UPGRADED.fullmatch(PurePosixPath(path).name) is not None
    return now == known or (upgraded and known.startswith(PROGRAM) and now.startswith(PROGRAM))


def trusted(fingerprints: Mapping[str, str], owned: frozenset[str]) -> dict[str, str]:
    """The paths of a solution that a footprint takes: no script in place of a verifier's program.

    `owned`: names of programs that a package brought, as the records of dpkg or pip list them.
    """
    return {
        path: known
        for path, known in fingerprints.items()
        if not is_tool(PurePosixPath(path).name)
        or known.startswith((PROGRAM, LINK, GONE, FOLDER))
        or PurePosixPath(path).name in owned
    }


def misleads(cache: bytes | None, footprint: Footprint) -> bool:
    """Whether the loader's cache names a library outside the usual folders that the solution did not put there."""
    paths = {found.decode(errors="replace") for found in _LIBRARY_PATH.findall(cache or b"")}
    return cache is None or any(
        not below(path, LIBRARY_DIRS) and path not in footprint.paths and not footprint.covers(path) for path in paths
    )


def is_critical(path: str, place: Place) -> bool:
    """Whether the shell that removes added paths could itself run or load it, or find its programs by it."""
    parent = str(PurePosixPath(path).parent)
    folders = (*place.path, *place.libraries, *LIBRARY_DIRS)
    return (
        any(below(folder, (path,)) for folder in folders)
        or parent in folders
        or _in_hardware(path)
        or path.startswith("/etc/ld.so.")
    )


def accounts(image: str, now: str, users: Iterable[str]) -> str | None:
    """/etc/passwd with the image's lines of `users` first, before others of their ids; None = look-ups find them."""
    names = set(users)
    first = [line for line in image.splitlines() if line.split(":")[0] in names]
    ids = {line.split(":")[2] for line in first}
    lines = [line for line in now.splitlines() if line.count(":") == 6]
    seen: dict[str, str] = {}
    for line in lines:
        for key in (line.split(":")[0], f"id {line.split(':')[2]}"):
            seen.setdefault(key, line)
    if all(seen.get(line.split(":")[0]) == line for line in first) and all(seen[f"id {one}"] in first for one in ids):
        return None
    return "\n".join([*first, *(line for line in lines if line.split(":")[0] not in names)]) + "\n"


def packages(image: str, now: str, footprint: Footprint) -> str:
    """dpkg's status: the container's paragraphs of packages that the solution installs or removes, else the image's."""
    records = (PurePosixPath(path) for path in footprint.paths if path.startswith("/var/lib/dpkg/info/"))
    own = {_masked(record.stem.partition(":")[0]) for record in records}
    before, after = paragraphs(image), paragraphs(now)
    kept = {key: text for key, text in before.items() if _masked(key[0]) not in own}
    kept |= {key: text for key, text in after.items() if _masked(key[0]) in own}
    return "".join(f"{text}\n\n" for _, text in sorted(kept.items()))


def paragraphs(status: str) -> dict[tuple[str, str], str]:
    """By package and architecture."""
    found: dict[tuple[str, str], str] = {}
    for text in re.split(r"\n\n+", status.strip("\n")):
        fields = dict(re.findall(r"^(Package|Architecture): (\S+)", text, re.MULTILINE))
        if "Package" in fields:
            found[fields["Package"], fields.get("Architecture", "")] = text
    return found


def _guarded(change: Change, place: Place) -> bool:
    """Whether a footprint allows it only with the content that the solution leaves: hooks, tools, libraries, runner."""
    path = PurePosixPath(change.path)
    parent = str(path.parent)
    if path.suffix in (".pth", ".egg-link") or path.name == "entry_points.txt" or change.path.startswith("/etc/ld.so."):
        return True
    if is_tool(path.name) and (path.parent.name in PROGRAMS or parent in place.path):
        return True
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts) and any(map(is_runner, path.parts)):
        return True
    changed_library = change.kind is Kind.CHANGED and _LIBRARY.fullmatch(path.name) and parent in LIBRARY_DIRS
    return bool(changed_library) or _in_hardware(change.path)


def _never(path: str, place: Place) -> bool:
    """Whether no solution may change it."""
    name = PurePosixPath(path).name
    stem, parent = name.partition(".")[0], str(PurePosixPath(path).parent)
    if path == PRELOAD or stem in SITE:
        return True
    if parent == "/":
        return name in SETTINGS or ALWAYS_BESIDE.fullmatch(name) is not None
    return parent in place.beside and is_runner(stem) and not ALWAYS_BESIDE.fullmatch(name)


def _at_home(change: Change, home: str, layer: Layer) -> bool:
    start = home.rstrip("/") + "/"
    if not change.path.startswith(start):
        return False
    inside = change.path[len(start) :]
    first, _, rest = inside.partition("/")
    if first in HOME or rest.partition("/")[0] in HOME_PARTS.get(first, ()):
        return True
    if (settings := HOME_SETTINGS.get(inside)) and change.kind is not Kind.REMOVED:
        content = layer.content(change.path)
        return content is None or settings.search(content.decode(errors="replace")) is not None
    return change.kind is Kind.CHANGED and below(inside, STORES)


def _in_hardware(path: str, folders: Iterable[str] = LIBRARY_DIRS) -> bool:
    return any(
        path.startswith(f"{base}/") and _HARDWARE.fullmatch(path[len(base) + 1 :]) is not None for base in folders
    )


def topmost(paths: Iterable[str]) -> list[str]:
    """Without those that lie below another."""
    every = set(paths)
    return sorted(path for path in every if not any(str(above) in every for above in PurePosixPath(path).parents))


def below(path: str, roots: Iterable[str]) -> bool:
    """Whether `path` is one of `roots` or in one."""
    return any(path == root or path.startswith(f"{root.rstrip('/')}/") for root in roots)


@functools.cache
def _masked(path: str) -> str:
    return _VERSION.sub("#", path)
