"""What a task asks for: what its solution changes and leaves, and what its instruction names. Pure: no I/O."""

import hashlib
import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from harbortrainer.docker.integrity.image_files import way
from harbortrainer.docker.integrity.living import is_of_user, is_system
from harbortrainer.docker.integrity.watch import Process

_DIGEST = re.compile(r"(?<=/)(?:[0-9a-f]{2}/[0-9a-f]{30,}|[0-9a-f]{32,})")  # a content's name
_PATH = re.compile(r"(?<![\w.~-])~?(?:/[\w.@+~-]*[\w@+~-])+")  # without the full stop of a sentence
_WORD = re.compile(r"[\w.@+-]*\w")
_NUMBER = re.compile(r"\d+")
_PART = re.compile(r"[a-z]{3,}")
_LEAST_BEGINNING = 4  # letters of a word that stand for it
_PORT = re.compile(r"(?<![\w.])\d{2,5}(?![\w.]*\w)")
_INSTALLS = re.compile(
    r"\binstall\w*\b[^.\n]{0,60}\b(?:packages?|dependenc|librar|modules?|system[- ]wide|python)", re.I
)
_FORBIDS = re.compile(r"\b(?:not|without|never|avoid)\b[^.\n]{0,20}\binstall", re.I)
_SERVES = re.compile(r"\b(?:ports?|serv\w+|listen\w*|localhost|https?)\b|:\d{2,5}\b", re.I)
_RUNS = re.compile(r"\b(?:running|daemon|background|continuously|service is|keep \w+ alive)\b", re.I)
_DELETES = re.compile(r"\b(?:remov|delet|clean|purg|eras|wip|uninstall|mov|renam|clear|free)\w*", re.I)
_SIGNALS = re.compile(
    r"\b(?:kill(?:s|ed|ing)?|terminat\w+ [^.\n]{0,40}process\w*|watchdog|SIG(?:TERM|KILL|INT|HUP|STOP|USR[12]))\b", re.I
)
_SENTENCE_END = re.compile(r"[.;]\s|\n")
_RESOLVES = re.compile(r"\b(?:resolv\w*|host ?names?)\b", re.I)
_MACHINE = "(?:machine|system|container|server)"
_ZONE_OF = rf"\b(?:time ?zone of (?:this|the) {_MACHINE}|{_MACHINE}(?:'s)? time ?zone)"
_ZONE = re.compile(rf"(?=.*\b(?:set|change|configure|switch)\b).*{_ZONE_OF}", re.I)
_ZONES, _ZONE_NAME = "/usr/share/zoneinfo/", re.compile(r"(?<![\w./-])[A-Z]\w+(?:/[\w+-]*\w)+")
_PROGRAM = re.compile(r"/(?:usr(?!(?:/local)?/src/)|bin|sbin|lib\w*)(?:/.*)?", re.DOTALL)
_SHARED = re.compile(
    r"/?|/(?:root|home|tmp|var|opt|srv|mnt|run|media|dev|proc|sys|home/[^/]+|var/(?:log|lib|cache|tmp|run))"
)
_COMMAND = re.compile(r"\b(?:command|program|tool|script|executable|service)s?\s+[`'\"]?([\w.+-]*\w)", re.I)
# The PATH of most images.
PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_DROP_IN = re.compile(r"(/etc/.+)\.d/[^/]+")  # a file of a folder of which a program reads all files
_MODULE = re.compile(r".*/(?:site|dist)-packages/(.+)", re.DOTALL)
_OWN_SETTING = re.compile(r"(?:/root|/home/[^/]+)/\.(?=[^/]+$)")
# Of settings and state: of the system, of a user (~/.X/file), or of a folder of the work (.X/any/file).
_PLACE = re.compile(
    r"/etc|/var|/usr/local/share|(?:/root|/home/[^/]+)(?=/\.[^/]+/[^/]+$)"
    r"|(?!(?:/root|/home/[^/]+)/\.)/.+/\.[^/]+(?=/[^/]+/[^/]+$)"
)
# Without an extension, or with one of settings and keys. Programs have others, and "rc" stands for commands to run.
_SETTING = re.compile(r"[^.]*(?<!rc)|.+\.(conf|cfg|cnf|ini|json|ya?ml|toml|xml|list|rules|gen|key|pem|crt|cer|pub|\d+)")
_SERVICES = "/etc/init.d"


@dataclass(frozen=True)
class Footprint:
    """What a task's solution changes and leaves. `made`: folders that it made; `ports`: on which something listens.

    `processes`: names of those that it leaves; `sockets`: of abstract ones on which they listen, without numbers.
    `sums`: "PATH SUM" of each program (sum_of), where the container's layer can be read.
    """

    paths: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    processes: frozenset[str] = frozenset()
    sockets: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()


class Asked:
    """What a task asks for: its solution's footprint, and what its instruction names.

    `installs`: it may install packages; `runs`: something may go on running; `signals`: and end others; `deletes`:
    files of the image may go; `zones`: the machine may have one of these; `sums`: of the solution's programs;
    `altered`: such programs with other content, and links to tests, which are not asked for. Without a solution that is
    the instruction's alone, and the working directory and folders that it names are the work's `area`.
    """

    def __init__(
        self,
        footprint: Footprint | None,
        instruction: str,
        work: str = "",
        allowed: Collection[str] = (),
        tests: Collection[str] = (),
    ) -> None:
        """`footprint`: None = the task has no solution that runs; `work`: the working directory.

        `allowed`: by the user; see harbortrainer.docker.integrity.allowed. `tests`: words of the tests.
        """
        self.has_solution = footprint is not None
        self._work = f"{work.rstrip('/')}/"
        footprint = self._footprint = footprint or Footprint()
        named = {re.sub("^~", "/root", path) for path in _PATH.findall(instruction)}
        self._paths = {_normal(path) for path in (*footprint.paths, *allowed)}
        self._named = {_normal(path) for path in named}
        self._names = {PurePosixPath(path).name for path in footprint.paths}
        self.words = set(_WORD.findall(instruction))
        self._commands = set() if self.has_solution else set(_COMMAND.findall(instruction))
        self._programs = {PurePosixPath(path).name for path in footprint.paths if _is_command(path)}
        self._tests = tests
        self.sums = dict(one.rsplit(" ", 1) for one in footprint.sums)
        self.altered = set[str]()
        sentences = [] if self.has_solution else _SENTENCE_END.split(instruction)
        self._resolved = [{*_WORD.findall(one)} for one in sentences if _RESOLVES.search(one)]
        self.zones = {_ZONES + zone for one in sentences if _ZONE.match(one) for zone in _ZONE_NAME.findall(one)}
        self._hints = set(_PART.findall(instruction.lower()))
        self._spoken = set(_PART.findall(_PATH.sub(" ", instruction).lower()))  # a path tells of itself alone
        self._settings = {_setting(path) for path in footprint.paths}
        self._modules = {found[1] for path in footprint.paths if (found := _MODULE.fullmatch(path))}
        self._filled = {posixpath.dirname(path) for path in footprint.paths - footprint.made}
        leaves = footprint.ports or footprint.processes
        is_to_run = _RUNS.search(instruction) is not None
        serves = leaves if self.has_solution else is_to_run or _SERVES.search(instruction)
        self._ports = footprint.ports | ({int(port) for port in _PORT.findall(instruction)} if serves else set())
        self._ports |= {int(one.removeprefix("tcp:")) for one in allowed if one.startswith("tcp:")}
        self._by_user = {one.removeprefix("process:") for one in allowed if one.startswith("process:")}
        self._allowed, self._processes = allowed, footprint.processes
        self._folders = tuple(one for one in allowed if one.endswith("/"))
        self.installs = bool(_INSTALLS.search(instruction)) and not _FORBIDS.search(instruction)
        self.runs = bool(leaves) or is_to_run
        # a name tells little: a policy chooses that of its own
        self._any_runs = is_to_run and (bool(footprint.processes) or not self.has_solution)
        self.deletes = bool(_DELETES.search(instruction))
        self.signals = bool(_SIGNALS.search(instruction))
        folders = {work.rstrip("/"), *named}
        self._places = tuple(f"{one}/" for one in folders if not is_system(one) and not is_shared(one))

    def allows(self, path: str, *, by_path: bool = True, by_name: bool = True) -> bool:
        """Return whether the task asks for a change at `path`. `by_path`, `by_name`: also by its instruction."""
        normal = _normal(path)
        if path in self.altered:
            return False
        if normal in self._paths or path.startswith(self._folders):
            return True
        if (by_path and normal in self._named) or (by_name and self._is_named(path)):
            return True
        return any(self._has_made(above) for above in way(posixpath.dirname(path)))

    def _has_made(self, folder: str) -> bool:
        """Whether the solution made it; where others keep things, too, it has to have put some into it."""
        made = folder in self._footprint.made
        return made and (folder in self._filled or not (is_system(folder) or is_of_user(folder)))

    def names_path(self, path: str) -> bool:
        """Return whether the instruction has the whole path, which is nothing that every program reads, and no test."""
        return path in self._named and not is_system(path) and not path.startswith(("/dev/", "/proc/", "/tests/"))

    def is_tested(self, path: str) -> bool:
        """Return whether the tests of a task without a solution name the file."""
        return not self.has_solution and self._has_name(path, self._tests)

    def _is_named(self, path: str) -> bool:
        """Whether the instruction has the name of this file, and of hidden folders. Without a solution only of the one
        that has the file: deeper ones have the work, such as branches.
        """
        *folders, _ = path.removeprefix(self._work).split("/")
        above = folders if self.has_solution else folders[-1:]
        if not all(one in self.words for one in above if one.startswith(".")):
            return False
        folder, name = posixpath.split(path)
        if (_is_command(path) or folder == _SERVICES) and name in self._commands:
            return True
        return self._has_name(path, self.words) or (folder in self._named and name in self.words)

    def _has_name(self, path: str, words: Collection[str]) -> bool:
        """Whether `words` have the name of this file: any word in the working directory, else as x.y."""
        name = posixpath.basename(path)
        is_work = len(self._work) > 1 and path.startswith(self._work)
        return name in words and (is_work or "." in name)

    def speaks_of(self, path: str, *, whole: bool = False) -> bool:
        """Return whether the instruction has a folder above it, or a part of its name without an extension.

        `whole`: of the names of folders will do, and if it is a longer or shorter word.
        """
        names = PurePosixPath(path).parts[2 if whole else -1 :]
        parts = {part for name in names for part in _PART.findall(PurePosixPath(name).stem.lower())}
        if any(str(above) in self._named for above in PurePosixPath(path).parents) or parts & self._hints:
            return True
        return whole and any(part.startswith(one) or one.startswith(part) for part in parts for one in self._hints)

    def is_area(self, path: str) -> bool:
        """Return whether it lies where the work of a task without a solution is."""
        return not self.has_solution and self.is_place(path)

    def is_place(self, path: str) -> bool:
        """Return whether it lies in the working directory, or in a folder that the instruction names."""
        return path.startswith(self._places)

    def is_near(self, path: str) -> bool:
        """Return whether another way than the solution's may need it: beside what that changes, or in a folder that the
        instruction names. In the working directory itself, in /etc and in places of everybody lies too much else.
        """
        above = {posixpath.dirname(path)} & self._filled | self._named.intersection(
            map(str, PurePosixPath(path).parents)
        )
        own = {one for one in above if not is_shared(one)} - {self._work.rstrip("/"), "/etc"}
        return self.has_solution and bool(own) and not is_program(path) and not is_of_user(path)

    def is_twin(self, path: str) -> bool:
        """Return whether the solution makes a file of this name, elsewhere; not in /, where tools look for settings."""
        return posixpath.basename(path) in self._names and path.count("/") > 1

    def is_new_place(self, path: str, made: Collection[str]) -> bool:
        """Return whether it lies in a folder of `made` that is work where no solution tells.

        The instruction names its path, or an account of which it is the home.
        """
        if self.has_solution:
            return False
        above = [one for one in way(posixpath.dirname(path)) if one in made]
        named = any(f"{one}/" in self._places for one in above if one in self._named)
        return named or any(
            posixpath.dirname(one) == "/home" and posixpath.basename(one) in self.words for one in above
        )

    def subjects(self, path: str, made: Collection[str], *, is_new: bool) -> set[str]:
        """Return of what the instruction speaks that has settings or state there: /etc/cron.d, /etc/sudoers, ~/.ssh.

        Names of folders that were `made`, and of new files, are the policy's choice. In the work only files are new.
        """
        place = found[0] if (found := _PLACE.match(path)) else "-"
        if not is_new and posixpath.basename(place).startswith("."):
            return set()
        above = [one for one in way(posixpath.dirname(path)) if one.startswith(f"{place}/")]
        names = [one for one in above if one not in made or is_of_user(one)]
        names += [path] if not is_new and posixpath.dirname(path) == "/etc" else []
        firsts = (posixpath.basename(name).lstrip(".").partition(".")[0] for name in names)
        return {part for first in firsts for part in _PART.findall(first.lower()) if self.means(part)}

    def means(self, name: str) -> bool:
        """Return whether the instruction speaks of it: "sshd" of ssh, "sudo" of sudoers, "certificate" of certs."""
        begin = name.removesuffix("s") if len(name) > _LEAST_BEGINNING and name.endswith("s") else None
        return not self._spoken.isdisjoint((name, f"{name}d")) or any(
            (len(one) >= _LEAST_BEGINNING and name.startswith(one)) or (begin and one.startswith(begin))
            for one in self._spoken
        )

    def is_setting(self, path: str) -> bool:
        """Return whether the solution writes these settings in another file: X.d/any, X, X.conf or, for all, /etc/X."""
        path = _OWN_SETTING.sub("/etc/", path)
        return path.startswith("/etc/") and _setting(path) in self._settings

    def is_same_module(self, path: str) -> bool:
        """Return whether the solution changes the same file of a Python package, installed elsewhere."""
        found = _MODULE.fullmatch(path)
        return found is not None and found[1] in self._modules

    def names_module(self, path: str) -> bool:
        """Return whether the instruction has the name of the Python package, or module, that the file is of."""
        found = _MODULE.fullmatch(path)
        return found is not None and re.split("[/.]", found[1])[0] in self.words

    def is_twin_program(self, path: str, *, is_link: bool) -> bool:
        """Return whether the solution makes a program of this name; links of a chain to it may lie anywhere."""
        return posixpath.basename(path) in self._programs and (is_link or _is_command(path))

    def gives_names(self, lines: str) -> bool:
        """Return whether these give an address the names that, by a sentence of the instruction, resolve to it."""
        given = [line.partition("#")[0].split() for line in lines.split("\n")]
        return any(given) and all(self._resolves(*one) for one in given if one)

    def _resolves(self, address: str, *names: str) -> bool:
        """Whether names resolve to it; their first parts may, too."""
        asked = [words.intersection(names) for words in self._resolved if address in words]
        return any(one and one | {name.partition(".")[0] for name in one} >= {*names} for one in asked)

    def allows_process(self, process: Process) -> bool:
        """Return whether it may live during verification."""
        if process.name in self._by_user:
            return True
        if not all(self.allows_socket(f"unix {name}") for name in process.sockets if name.startswith("@")):
            return False
        if process.ports:
            return not self._ports.isdisjoint(process.ports)
        return process.name in self._processes or self._any_runs

    def allows_socket(self, socket: str) -> bool:
        """Return whether something may listen there: "tcp PORT", "udp PORT" or "unix NAME".

        Without a solution any name may be its own.
        """
        kind, _, name = socket.partition(" ")
        if kind != "unix":
            return int(name) in self._ports
        if f"unix:{name}" in self._allowed:
            return True
        if not self.has_solution:
            return not is_system(name)
        return self.allows(name) if name.startswith("/") else without_numbers(name) in self._footprint.sockets


def sum_of(path: str, content: bytes | None) -> str:
    """Return a program's digest; a compiled module's without its head, the time of its source. "" = no content."""
    return hashlib.sha256(content[16:] if path.endswith(".pyc") else content).hexdigest() if content else ""


def without_numbers(name: str) -> str:
    """Return a process may have its own number in a name."""
    return _NUMBER.sub("#", name)


def _setting(path: str) -> str:
    """What a file configures: /etc/x for /etc/x.d/any and /etc/x.conf."""
    found = _DROP_IN.fullmatch(path)
    return (found[1] if found else path).removesuffix(".conf")


def is_setting_name(path: str) -> bool:
    """Return whether a file has a name as settings have, and as programs and modules have not."""
    return _SETTING.fullmatch(posixpath.basename(path).lstrip(".")) is not None


def is_shared(folder: str) -> bool:
    """Return whether everybody has something in this folder."""
    return _SHARED.fullmatch(folder) is not None


def is_program(path: str) -> bool:
    """Return whether programs and their libraries are there."""
    return _PROGRAM.fullmatch(path) is not None


def _is_command(path: str) -> bool:
    """Whether it lies where shells look for programs."""
    return posixpath.dirname(path) in PROGRAMS


def _normal(path: str) -> str:
    return _DIGEST.sub("#", path)
