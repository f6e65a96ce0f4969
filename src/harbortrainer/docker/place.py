"""Facts of one container before the agent acts, and the shell text that reads them and puts its network files back."""

import functools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harbortrainer.docker.container import HOSTNAME, NETWORK_FILES
from harbortrainer.docker.images import Image
from harbortrainer.docker.names import SYSTEM
from harbortrainer.docker.system import Place, VerifierFacts, below
from harbortrainer.docker.verifier_facts import verifier_facts

NETWORK = "network"  # their fingerprint in a footprint
_MANY = 200  # paths for one rm
_PIECE = 4096  # characters of a line that are compared
_NO_HOMES = (*SYSTEM, "/dev", "/proc", "/sys", "/run", "/var/mail", "/var/spool", "/var/run", "/var/cache")
# Builtins only: working directory, homes of all accounts, folders of PATH, PYTHONPATH, LD_LIBRARY_PATH, network files.
FACTS = f"""w=$PWD; cd -P . && echo "W $PWD"
{{ while IFS=: read -r n x u g c h s; do cd -P "$h" && echo "H $PWD"; done </etc/passwd; }} 2>/dev/null
cd -P "$HOME" 2>/dev/null && echo "H $PWD"
each() {{ IFS=:; for d in $2; do cd "$w"; cd -P "$d/" 2>/dev/null && d=$PWD; echo "$1 $d"; done; }}
(each P "$PATH"; each Y "$PYTHONPATH"; each L "$LD_LIBRARY_PATH")
for f in {" ".join(NETWORK_FILES)}; do
{{ while IFS= read -r l || [ -n "$l" ]; do echo "N$f $l"; done <$f && echo "E$f"; }} 2>/dev/null
done"""
# Docker itself adds and removes the container's own name as it joins and leaves a network.
_OWN_NAME = re.compile(rf"^[0-9a-f.:]+\t{HOSTNAME}\n", re.MULTILINE)
_COMPARE = """n=; i=0
{{ while IFS= $r l || [ -n "$l" ]; do
[ "${{l%"$o"}}" = "$l" ] || case ${{l%"$o"}} in *[!0-9a-f.:]*) ;; *) continue;; esac
n="$n$l
"; i=$((i+1)); [ $i -gt {lines} ] && break; done <{file}; }} 2>/dev/null
[ "$n" = {content} ] || echo N {file}"""


def parse_facts(listed: str) -> tuple[Place, dict[str, str]]:
    """The output of FACTS: a place of folders alone, and the network files by path.

    The working directories are followed by those of PYTHONPATH.
    """
    rows: dict[str, list[str]] = {"W": [], "H": [], "P": [], "Y": [], "L": []}
    lines: dict[str, list[str]] = {}
    whole: list[str] = []
    for line in listed.splitlines():
        key, _, value = line.partition(" ")
        if key in rows and value.startswith("/"):
            rows[key].append(value)
        elif key[:1] == "N" and key[1:] in NETWORK_FILES:
            lines.setdefault(key[1:], []).append(value)
        elif key[:1] == "E":
            whole.append(key[1:])
    network = {file: "".join(f"{line}\n" for line in lines.get(file, ())) for file in whole}
    homes = [home for home in rows["H"] if home != "/" and not below(home, _NO_HOMES)]
    work = [*(rows["W"] or ["/"])[:1], *rows["Y"]]
    place = Place(path=_once(rows["P"]), homes=_once(["/root", *homes]), work=_once(work), libraries=_once(rows["L"]))
    return place, network


def _once(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))


def place_of(folders: Place, image: Image, task: Path | None) -> Place:
    """With what image and task tell. Blocking: reads the task's tests."""
    return _interned(
        replace(
            folders,
            services=bool(image.entrypoint),
            entrypoint=tuple(word for word in image.entrypoint if word.startswith("/")),
            tests=verifier_facts(task) if task else VerifierFacts(),
        )
    )


@functools.lru_cache(maxsize=1024)
def _interned(place: Place) -> Place:
    """The first equal one: it keeps what it has derived, 7 ms of CPU."""
    return place


def network_script(files: Mapping[str, str]) -> str:
    """Prints "N FILE" for each file that differs from its content in `files`."""
    lines = [f'o="\t{HOSTNAME}"; r="read -r"; [ -n "$BASH_VERSION" ] && r="read -r -n {_PIECE}"'] if files else []
    for file, content in files.items():
        text = shlex.quote(_OWN_NAME.sub("", content))
        lines.append(_COMPARE.format(lines=content.count("\n") + 1, file=file, content=text))
    return "\n".join(lines)


def writing_script(files: Mapping[str, str]) -> str:
    """Gives each file its content in `files`."""
    return "\n".join(f"printf %s {shlex.quote(content)} >{file}" for file, content in files.items())


def network_files(output: bytes) -> list[str]:
    """The files that `network_script` printed."""
    return [file for file in NETWORK_FILES if f"N {file}\n".encode() in output]


def removal_script(paths: Sequence[str]) -> list[str]:
    """Lines that remove the paths."""
    return [f"rm -rf -- {' '.join(map(_quoted, paths[at : at + _MANY]))}" for at in range(0, len(paths), _MANY)]


def _quoted(path: str) -> str:
    """For a shell whose input is UTF-8: other bytes and line breaks pass through printf."""
    if re.fullmatch(r"[ -~]*", path):
        return shlex.quote(path)
    octal = "".join(f"\\0{byte:03o}" for byte in path.encode(errors="surrogateescape"))
    return f"\"$(printf %b '{octal}')\""
