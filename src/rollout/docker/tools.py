"""The programs and libraries that verification itself runs, as an image has them."""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from src.rollout.docker import owner
from src.rollout.docker.belongings import remove_container
from src.rollout.docker.container import container_name
from src.rollout.docker.engine import engine
from src.rollout.docker.images import Image

_NAMES = """[ awk base64 basename bash busybox cat chgrp chmod chown cmp comm coreutils cp curl cut dash date dd diff
dirname du echo egrep env expr false fgrep find gawk git grep gunzip gzip head hostname id install kill ldd ln ls make
mawk md5sum mkdir mktemp mv nawk nohup node od original-awk paste perl pgrep ps printenv printf pwd python python3
readlink realpath rm rmdir sed seq setsid sh sha256sum sha512sum sleep sort stat tac tail tar tee test timeout touch tr
true truncate uname uniq wc which whoami xargs yes"""
_TOOLS = frozenset(_NAMES.split())
_VERSIONED = re.compile(r"(python|perl)\d[\d.]*")
# Often put before the image's by honest work (another version): only the image's own files are kept as they were.
_OFTEN_SHADOWED = re.compile(r"curl|git|make|node|python.*|perl.*")
_LIBRARY = re.compile(r"(ld[.-]|lib).*\.so(\.[\d.]+)?")
PRELOAD, CACHE = "/etc/ld.so.preload", "/etc/ld.so.cache"
CONFIGURATION = (PRELOAD, CACHE, "/etc/nsswitch.conf")  # say which libraries every program loads
_BASES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
_HARDWARE = (
    "glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v4",
    "haswell", "tls", "x86_64", "avx512_1",
)  # fmt: skip
_LIBRARY_DIRS = [*_BASES, *(f"{base}/{triplet}" for base in _BASES for triplet in _TRIPLETS)]
LIBRARY_DIRS = tuple(_LIBRARY_DIRS + [f"{base}/{part}" for base in _LIBRARY_DIRS for part in _HARDWARE])
OTHER_DIRS = ("/bin", "/sbin", "/etc/alternatives")  # on the way to programs, whatever PATH says
_LIST = r"""
chain() {
  p=$2
  while d=$(cd -P "${p%/*}/" 2>/dev/null && pwd); do
    n=${p##*/}; p=${d%/}/$n; echo "$1 $p"; [ -L "$p" ] || break
    t=$(readlink "$p"); case $t in /*) p=$t ;; *) p=$d/$t ;; esac
  done
}
for f in $HT_TOOLS; do
  IFS=:; for d in $HT_PATH; do [ -f "$d/$f" ] && chain "T $f" "$d/$f"; done; unset IFS
done
for f in $HT_TOOLS; do LD_TRACE_LOADED_OBJECTS=1 "$f" </dev/null 2>/dev/null; done |
  grep -o '/[^ ]*\.so[^ ]*' | sort -u |
  while read -r f; do chain L "$f"; done
for f in /lib/ld-* /lib64/ld-* $HT_FILES; do [ -f "$f" ] && chain L "$f"; done
for d in "$@"; do if [ -L "$d" ]; then echo "S $d"; elif [ -d "$d" ]; then echo "D $d"; fi; done
"""


@dataclass(frozen=True)
class Tools:
    """`files`: all paths, links on the way included. `first`: where a name is found. `folders`, `links`: on it."""

    files: frozenset[str]
    first: dict[str, str]
    libraries: dict[str, str]
    folders: frozenset[str]
    links: frozenset[str]


def is_tool(name: str) -> bool:
    return name in _TOOLS or _VERSIONED.fullmatch(name) is not None


def is_library(name: str) -> bool:
    return _LIBRARY.fullmatch(name) is not None


def may_be_shadowed(name: str) -> bool:
    return _OFTEN_SHADOWED.fullmatch(name) is not None


def ways(folders: Sequence[str]) -> list[str]:
    """The folders and all above them, / left out."""
    above = {str(parent) for folder in folders for parent in PurePosixPath(folder).parents}
    return sorted(({*folders} | above) - {"/"})


_known: dict[tuple[str, tuple[str, ...]], Tools] = {}
_listing = threading.Lock()


def tools_of(image: Image, path: tuple[str, ...], run_id: str) -> Tools:
    """What a container fresh from `image` says, asked once a process. Blocking. Raises docker.errors.APIError."""
    with _listing:
        key = (image.reference, path)
        if key not in _known:
            _known[key] = _parse(_listed(image, path, run_id))
        return _known[key]


def _listed(image: Image, path: tuple[str, ...], run_id: str) -> str:
    name, client = container_name("tools"), engine()
    client.create_container(
        image.reference,
        name=name,
        user="0",
        labels=owner.labels(run_id),
        entrypoint=["sh", "-c", _LIST, "sh", *ways([*path, *LIBRARY_DIRS, *OTHER_DIRS])],
        command=[],
        environment={
            "HT_TOOLS": " ".join(sorted(_TOOLS)),
            "HT_PATH": ":".join(path),
            "HT_FILES": " ".join(CONFIGURATION),
        },
        host_config=client.create_host_config(network_mode="none"),
    )
    try:
        client.start(name)
        client.wait(name)
        return client.logs(name, stdout=True, stderr=False).decode(errors="replace")
    finally:
        remove_container(name)


def _parse(listed: str) -> Tools:
    rows: dict[str, list[str]] = {"T": [], "L": [], "S": [], "D": []}
    first: dict[str, str] = {}
    for line in listed.splitlines():
        kind, _, path = line.partition(" ")
        if kind == "T":
            name, _, path = path.partition(" ")
            first.setdefault(name, path)
        if kind in rows:
            rows[kind].append(path)
    libraries = {PurePosixPath(path).name: path for path in rows["L"]}
    return Tools(frozenset(rows["T"] + rows["L"]), first, libraries, frozenset(rows["D"]), frozenset(rows["S"]))
