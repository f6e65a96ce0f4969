"""The rule: which changed paths of a container are put back before verification. Pure: sets of paths, no I/O.

A system path is one that verification could execute or load: programs, libraries, interpreters' folders, the
configuration of loader, shells and package managers, and names that Python or pytest reads beside the working
directory. The task's own solution says which of them its work may change: its footprint.
"""

import functools
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from harbortrainer.docker.layer import FOLDER, GONE, LINK, PROGRAM, Change, Kind, Layer

PRELOAD, CACHE, ACCOUNTS, PACKAGES = "/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/passwd", "/var/lib/dpkg/status"
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/nix", "/var/lib/dpkg", "/var/lib/apt",
    "/var/lib/pam", "/var/lib/python", "/var/lib/rpm", "/var/cache/apt", "/var/cache/ldconfig", "/var/cache/debconf",
)  # fmt: skip
_WORK = re.compile(r"/usr/(share/(nginx|doc|doc-base|man|info|lintian)|(local/)?(src|man)|local/share/(doc|man))(/.*)?")
_PROGRAMS = ("bin", "sbin", "libexec", "shims")
_PREFIX_PARTS = ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "share", "etc", "conda-meta", "pyvenv.cfg")
_ETC = re.compile(
    r"/etc/(ld\.so\..*|nsswitch\.conf|host\.conf|gai\.conf|profile|bash\.bash.*|bashrc|zsh.*|environment|inputrc|"
    r"login\.defs|gitconfig|wgetrc|curlrc|netrc|pip\.conf|xdg|uv|python.*|perl|npmrc|node.*|ssl|ca-certificates.*|pki|"
    r"apt|dpkg|apk|yum.*|dnf|alternatives|security|pam\..*|profile\.d|environment\.d|crypto-policies|conda|mamba|R|"
    r"java.*|maven)(/.*)?"
)
_HOME_NAMES = """.bashrc .bash_profile .bash_login .bash_logout .bash_aliases .bash_env .profile .shrc .kshrc .zshrc
.zshenv .zprofile .zlogin .cshrc .tcshrc .login .inputrc .pam_environment .curlrc .wgetrc .netrc .gitconfig
.git-templates .pip .pydistutils.cfg .pypirc .npmrc .yarnrc .condarc .mambarc .pythonrc .pythonrc.py .pythonstartup
.pdbrc .pdbrc.py .python-version .python-versions .cargo .rustup .nvm .pyenv .asdf .conda .mamba .pixi .deno .bun .volta
.rbenv .gem .gemrc .node_modules .node_libraries .ipython .perldb .tmux.conf .screenrc .gdbinit .local .uv .aptitude
.nix-profile .dpkg.cfg .xdg .bazelrc .Rprofile .Renviron .irbrc .ghci"""
_HOME = frozenset(_HOME_NAMES.split())
_CONFIG = "go uv pip git python pypoetry conda mamba fish npm curlrc wgetrc environment.d hatch pdm"
_CACHES = "uv pip pypoetry hatch pdm conda node npm"
_HOME_PARTS = {
    ".config": frozenset(_CONFIG.split()),
    ".cache": frozenset(_CACHES.split()),
    ".m2": frozenset(["settings.xml", "extensions.xml"]),
    ".gradle": frozenset(["init.d", "init.gradle", "gradle.properties"]),
}
_NAMES = """[ awk base64 basename bash busybox cat chgrp chmod chown cmp comm coreutils cp cut dash date dd diff
dirname du echo egrep env expr false fgrep find gawk grep gunzip gzip head hostname id install kill ldd ln ls
mawk md5sum mkdir mktemp mv nawk nohup od original-awk paste pgrep printenv printf ps pwd
readlink realpath rm rmdir sed seq setsid sh sha256sum sha512sum sleep sort stat su sudo tac tail tar tee test timeout
touch tr true truncate uname uniq wc which whoami xargs xz bzip2 unzip yes
apt apt-get apt-cache apt-key dpkg dpkg-deb dpkg-query dpkg-split gpg gpgv update-ca-certificates ldconfig
uv uvx pip pytest py.test tox nox conda mamba npm npx ssh wget"""
_TOOLS = frozenset(_NAMES.split())
_TOOL = re.compile(r"pip\d[\d.]*|(dpkg|apt|busybox|coreutils)[-.].*")
_UPGRADED = re.compile(r"(curl|git|make|node|nodejs|python|perl)(\d[\d.]*)?")  # tasks ask for other versions of these
_LIBRARY = re.compile(r"(ld[.-]|lib).*\.so(\.[\d.]+)?")
_BASES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
_HARDWARE = re.compile(r"(glibc-hwcaps|haswell|tls|x86_64|avx512_1)(/.*)?")
LIBRARY_DIRS = (*_BASES, *(f"{base}/{triplet}" for base in _BASES for triplet in _TRIPLETS))
_LIBRARY_PATH = re.compile(rb"/[^\0]*\.so[^\0]*")
_RUNNER = """pytest _pytest py pluggy iniconfig packaging pygments exceptiongroup tomli attr attrs typing_extensions
importlib_metadata setuptools pkg_resources pip xdist"""
RUNNER = frozenset(_RUNNER.split())
_SITE = frozenset(["sitecustomize", "usercustomize"])
_STANDARD = frozenset(sys.stdlib_module_names) | RUNNER | _SITE
_IMPORTABLE = re.compile(r"([A-Za-z_]\w*)\.(pyc?|(?:[\w-]+\.)?so)")
_READ_BESIDE = "conftest.py pytest.ini .pytest.ini pytest.toml .pytest.toml uv.toml .python-version .python-versions"
_BESIDE = frozenset(_READ_BESIDE.split())
_SETTINGS = frozenset(["pyproject.toml", "tox.ini", "setup.cfg"])
_INI_HOOK = re.compile(r"^\s*\[\s*(tool:)?pytest\s*\]", re.MULTILINE)
_ROUTINE = re.compile(r".*/__pycache__(/.*)?|/var/cache/.*|/var/lib/apt/(lists|periodic)(/.*)?|/.*/\.cache/pip(/.*)?")
_GENERIC = re.compile(
    r"site-packages|dist-packages|s?bin|lib(32|64|exec)?|python[\d.]*|perl[\d.]*|node_modules|share|include|local"
    r"|\.local|\.config|\.cache|etc|\w*\.d|alternatives|info|lists|opt|usr|glibc-hwcaps|\w+-linux-gnu|__pycache__"
)
_VERSION = re.compile(r"\d+(\.\d+)*([a-z]+\d+)*")


@dataclass(frozen=True)
class VerifierFacts:
    """What a task's tests tell. `folders`: where its scripts change to; `imports`: packages that its files import.

    `prefixes`: folders with a bin/ from which they run a verifier's program, such as .venv; may be relative.
    """

    folders: frozenset[str] = frozenset()
    prefixes: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()
    runs_uv: bool = False  # within a project


@dataclass(frozen=True)
class Place:
    """Facts of one container. `path`: folders of PATH; `homes`: of its accounts; `work`: the working directories.

    `entrypoint`: programs by absolute path that a restart of the container runs.
    """

    path: tuple[str, ...] = ()
    homes: tuple[str, ...] = ("/root",)
    work: tuple[str, ...] = ("/",)
    entrypoint: tuple[str, ...] = ()
    tests: VerifierFacts = field(default_factory=VerifierFacts)

    @functools.cached_property
    def prefixes(self) -> tuple[str, ...]:
        """X for each X/bin of PATH, and virtual environments that the tests name."""
        found = {str(PurePosixPath(d).parent) for d in self.path if PurePosixPath(d).name in ("bin", "sbin")}
        places = (*self.work, *self.tests.folders)
        found |= {str(PurePosixPath(place) / prefix) for place in places for prefix in self.tests.prefixes}
        return tuple(sorted(found - {*self.beside}))

    @functools.cached_property
    def beside(self) -> tuple[str, ...]:
        """Folders in which Python and pytest look for modules and settings: working directories and those above."""
        places = [PurePosixPath(place) for place in {"/", *self.work, *self.tests.folders, *self.homes}]
        return tuple(sorted({str(one) for place in places for one in (place, *place.parents)}))

    @functools.cached_property
    def roots(self) -> tuple[str, ...]:
        """Folders and files below which changes are looked for; those of `beside` only by name."""
        found = [*SYSTEM, "/etc", "/opt", *self.path, *self.entrypoint]
        found += [f"{prefix}/{part}" for prefix in self.prefixes for part in _PREFIX_PARTS]
        found += [f"{home.rstrip('/')}/{name}" for home in self.homes for name in _HOME]
        found += [f"{home.rstrip('/')}/{a}/{b}" for home in self.homes for a, bs in _HOME_PARTS.items() for b in bs]
        return tuple(topmost(found))


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
    if _WORK.fullmatch(path):
        return False
    if below(path, (*SYSTEM, *place.path)) or path in place.entrypoint or _ETC.fullmatch(path):
        return True
    if path.startswith("/opt/") and any(part in _PREFIX_PARTS[:6] for part in PurePosixPath(path).parts[2:]):
        return True
    if any(below(path, (f"{prefix}/{part}",)) for prefix in place.prefixes for part in _PREFIX_PARTS):
        return True
    return any(_at_home(path, home) for home in place.homes) or is_beside(change, place, layer)


def is_beside(change: Change, place: Place, layer: Layer) -> bool:
    """Whether Python, pytest or uv would read it because it lies in, or above, a working directory."""
    path = PurePosixPath(change.path)
    if str(path.parent) not in place.beside or change.kind is Kind.REMOVED:
        return False
    if path.name in _BESIDE:
        return True
    if place.tests.runs_uv and path.name in ("pyproject.toml", "uv.lock"):
        return True
    if path.name in _SETTINGS:
        return _steers(path.name, layer.content(change.path))
    return change.kind is Kind.ADDED and _shadows(change, place, layer)


def may_be_beside(name: str, place: Place) -> bool:
    """Whether an entry of this name can matter beside a working directory: the quick test."""
    return name in _BESIDE | _SETTINGS | {"uv.lock"} or _names_module(name.partition(".")[0], place)


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
    upgraded = _UPGRADED.fullmatch(PurePosixPath(path).name) is not None
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


def is_tool(name: str) -> bool:
    """Whether it is a program that verifiers run themselves."""
    return name in _TOOLS or _TOOL.fullmatch(name) is not None or _UPGRADED.fullmatch(name) is not None


def misleads(cache: bytes | None, footprint: Footprint) -> bool:
    """Whether the loader's cache names a library outside the usual folders that the solution did not put there."""
    paths = {found.decode(errors="replace") for found in _LIBRARY_PATH.findall(cache or b"")}
    return cache is None or any(
        not below(path, LIBRARY_DIRS) and path not in footprint.paths and not footprint.covers(path) for path in paths
    )


def is_critical(path: str, place: Place) -> bool:
    """Whether the shell that removes added paths could itself run or load it, or find its programs by it."""
    parent = str(PurePosixPath(path).parent)
    leads = any(below(folder, (path,)) for folder in (*place.path, *LIBRARY_DIRS))
    return leads or parent in (*place.path, *LIBRARY_DIRS) or _in_hardware(path) or path.startswith("/etc/ld.so.")


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
    if is_tool(path.name) and (path.parent.name in _PROGRAMS or parent in place.path):
        return True
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts) and any(map(_is_runner, path.parts)):
        return True
    changed_library = change.kind is Kind.CHANGED and _LIBRARY.fullmatch(path.name) and parent in LIBRARY_DIRS
    return bool(changed_library) or _in_hardware(change.path)


def _is_runner(name: str) -> bool:
    stem = re.split(r"[-.]", name)[0].lower()
    return stem in RUNNER or stem.startswith(("pytest_", "_pytest"))


def _never(path: str, place: Place) -> bool:
    """Whether no solution may change it."""
    name = PurePosixPath(path).name
    stem, parent = name.partition(".")[0], str(PurePosixPath(path).parent)
    if path == PRELOAD or stem in _SITE:
        return True
    if parent == "/":
        return name in (_BESIDE | _SETTINGS)
    return parent in place.beside and _is_runner(stem) and name not in _BESIDE


def _shadows(change: Change, place: Place, layer: Layer) -> bool:
    name = PurePosixPath(change.path).name
    if change.folder:  # without __init__, it comes after every other module of the name
        package = any(inside.startswith("__init__.") for inside in layer.names(change.path))
        return _is_runner(name) or name in _SITE or (package and _names_module(name, place))
    match = _IMPORTABLE.fullmatch(name)
    return match is not None and _names_module(match[1], place)


def _names_module(stem: str, place: Place) -> bool:
    """Whether verification may import a module of this name from elsewhere."""
    return stem in _STANDARD | place.tests.imports or _is_runner(stem)


def _steers(name: str, content: bytes | None) -> bool:
    """Whether a settings file steers pytest or uv, or replaces the tool that builds the project."""
    text = (content or b"").decode(errors="replace")
    if name != "pyproject.toml":
        return _INI_HOOK.search(text) is not None
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return True
    tool, build = settings.get("tool"), settings.get("build-system")
    tools = tool.keys() & {"pytest", "uv"} if isinstance(tool, dict) else set[str]()
    return bool(tools) or (isinstance(build, dict) and "backend-path" in build)


def _at_home(path: str, home: str) -> bool:
    start = home.rstrip("/") + "/"
    if not path.startswith(start):
        return False
    first, _, rest = path[len(start) :].partition("/")
    return first in _HOME or rest.partition("/")[0] in _HOME_PARTS.get(first, ())


def _in_hardware(path: str) -> bool:
    return any(
        path.startswith(f"{base}/") and _HARDWARE.fullmatch(path[len(base) + 1 :]) is not None for base in LIBRARY_DIRS
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
