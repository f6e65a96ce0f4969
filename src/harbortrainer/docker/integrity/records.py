"""What package managers' records list: the files of packages that were installed whole. All functions block.

Records: RECORD of Python's wheels with sha256 sums (https://packaging.python.org/specifications/recording-installed-packages),
dpkg's NAME.list with NAME.md5sums, and npm's node_modules/.package-lock.json, which has no sums of files.
"""

import base64
import contextlib
import csv
import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from harbortrainer.docker.integrity.change import ChangeKind, FileChange
from harbortrainer.docker.integrity.image_files import way
from harbortrainer.docker.integrity.living import is_of_user, is_system

_WHEEL, _NPM = ".dist-info/RECORD", "/node_modules/.package-lock.json"
_DPKG, _LIST = "/var/lib/dpkg/info/", ".list"
_VAR = "/var/"
_SITE = re.compile(r"/lib/python[\d.]*/(?:site|dist)-packages/[^/]+/RECORD$")  # below an environment's prefix
_MERGED = ("/bin/", "/sbin/", "/lib/", "/lib64/")  # links into /usr
_SCRIPTS = ("console_scripts]", "gui_scripts]")
_MOST = 1000  # records
_DIGEST = re.compile(r"/((?:[0-9a-f]{2}/)*[0-9a-f]{30,})$")
Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Records:
    """Records of packages. `listed`: paths that packages added; `about`: paths that describe one."""

    listed: frozenset[str] = frozenset()
    about: frozenset[str] = frozenset()


def records_of(changes: Iterable[FileChange], read: Read, opened: Collection[str]) -> Records:
    """Return the files that packages added to a container. `read`: the content of a path, None = no file is there.

    A file of `opened` is listed only if it has the sum of its record, or is named by its own sum, as in caches.
    """
    changes = [*changes]
    new = [one for one in changes if one.kind is ChangeKind.ADDED]
    changed = {one.path for one in changes if one.kind is ChangeKind.CHANGED}
    added, folders = {one.path for one in new}, {one.path for one in new if one.folder}
    listed: set[str] = set()
    about: set[str] = set()
    for record in [path for path in sorted(added) if _is_record(path)][:_MOST]:
        text = (read(record) or b"").decode(errors="surrogateescape")
        if record.endswith(_WHEEL):
            sums = {
                path: digest
                for path, digest in _wheel(text, PurePosixPath(record).parents[1])
                if _is_near(path, record, folders)
            }
            plugins = str(PurePosixPath(record).with_name("entry_points.txt"))
            if _names_others((read(plugins) or b"").decode(errors="replace"), text):
                sums.pop(plugins, None)
            about |= {path for path in sums if path.startswith(f"{PurePosixPath(record).parent}/")}
        elif record.endswith(_NPM):
            sums = dict.fromkeys(_below(text, PurePosixPath(record).parents[1], added), "")
            about.add(record)
        else:
            about |= {path for path in changed if posixpath.dirname(path) == str(PurePosixPath(record).parents[1])}
            sums = dict(_dpkg(text, (read(f"{record.removesuffix(_LIST)}.md5sums") or b"").decode(errors="replace")))
        listed |= {path for path in added & sums.keys() if path not in opened or _has_sum(read(path), sums[path])}
    listed |= {path for path in added.intersection(opened) if _DIGEST.search(path) and _names_itself(path, read(path))}
    return Records(frozenset(listed | (about & changed)), frozenset(about & (added | changed)))


def _is_near(path: str, record: str, made: Collection[str]) -> bool:
    """Whether a wheel may have put it there: below the prefix of an environment, which is the image's or a new folder.

    `made`: new folders.
    """
    if is_system(path) or is_of_user(path):
        return True
    if str(PurePosixPath(record).parents[1]) not in made:
        return (prefix := _SITE.sub("/", record)) not in ("/", record) and path.startswith(prefix)
    tops = {next((above for above in way(one) if above in made), "") for one in (path, record)}
    return len(tops) == 1 and tops != {""}


def _names_itself(path: str, content: bytes | None) -> bool:
    name = "".join(_DIGEST.findall(path)).replace("/", "")
    kinds = ("sha512", "sha256", "sha1", "md5") if content is not None else ()
    return any(name == hashlib.new(kind, content or b"", usedforsecurity=False).hexdigest() for kind in kinds)


def _is_record(path: str) -> bool:
    return path.endswith((_WHEEL, _NPM)) or (path.startswith(_DPKG) and path.endswith(_LIST))


def _wheel(text: str, folder: PurePosixPath) -> Iterator[tuple[str, str]]:
    """Each path with its sum; "" = it has none."""
    with contextlib.suppress(csv.Error):
        for row in csv.reader(text.splitlines()):
            if row:
                yield posixpath.normpath(folder / row[0]), row[1] if len(row) > 1 else ""


def _names_others(plugins: str, record: str) -> bool:
    """Whether programs load modules of other packages as plugins of this one."""
    own = {re.split(r"[/.,]", line, maxsplit=1)[0] for line in record.splitlines()}
    groups = (group for group in re.split(r"(?m)^\[", plugins) if not group.startswith(_SCRIPTS))
    return any(module not in own for group in groups for module in re.findall(r"(?m)^[^=\n]+=\s*(\w+)", group))


def _dpkg(text: str, sums: str) -> Iterator[tuple[str, str]]:
    """Each path, also behind the links from / into /usr."""
    known = {f"/{path}": f"md5={digest}" for digest, _, path in (line.partition("  ") for line in sums.splitlines())}
    for path in text.splitlines():
        if not is_system(path) and not path.startswith(_VAR):
            continue  # where an image has folders of its own
        yield path, known.get(path, "")
        if path.startswith(_MERGED):
            yield f"/usr{path}", known.get(path, "")


def _below(text: str, folder: PurePosixPath, added: Collection[str]) -> Iterator[str]:
    """What lies in the folders of npm's packages."""
    try:
        names = [PurePosixPath(name) for name in json.loads(text)["packages"] if "node_modules/" in name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    packages = tuple(f"{folder / name}/" for name in names if not name.is_absolute() and ".." not in name.parts)
    yield from (path for path in added if path.startswith(packages))


def _has_sum(content: bytes | None, known: str) -> bool:
    name, _, value = known.partition("=")
    if not value or content is None:  # it is large
        return True
    if name not in ("sha256", "md5"):
        return False
    digest = hashlib.new(name, content, usedforsecurity=False)
    return value in (digest.hexdigest(), base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode())
