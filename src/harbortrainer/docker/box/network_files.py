"""The network files of one container, which Docker mounts: shell text that reads, compares and writes them."""

import re
import shlex
from collections.abc import Mapping, Sequence

from harbortrainer.docker.box.container import HOSTNAME, NETWORK_FILES

_MANY = 200  # paths for one rm
_PIECE = 4096  # characters of a line that are compared
# Prints their content. Builtins only.
READ_NETWORK = f"""for f in {" ".join(NETWORK_FILES)}; do
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


def parse_network(listed: str) -> dict[str, str]:
    """Return the output of READ_NETWORK: content by path."""
    lines: dict[str, list[str]] = {}
    whole: list[str] = []
    for line in listed.splitlines():
        key, _, value = line.partition(" ")
        if key[:1] == "N" and key[1:] in NETWORK_FILES:
            lines.setdefault(key[1:], []).append(value)
        elif key[:1] == "E":
            whole.append(key[1:])
    return {file: "".join(f"{line}\n" for line in lines.get(file, ())) for file in whole}


def is_same(content: str, known: str) -> bool:
    """Return whether a file has the content that READ_NETWORK showed, but for the container's own name."""
    lines = content if content.endswith("\n") or not content else f"{content}\n"
    return _OWN_NAME.sub("", lines) == _OWN_NAME.sub("", known)


def network_script(files: Mapping[str, str]) -> str:
    """Return a script that prints "N FILE" for each file that differs from its content in `files`."""
    lines = [f'o="\t{HOSTNAME}"; r="read -r"; [ -n "$BASH_VERSION" ] && r="read -r -n {_PIECE}"'] if files else []
    for file, content in files.items():
        text = shlex.quote(_OWN_NAME.sub("", content))
        lines.append(_COMPARE.format(lines=content.count("\n") + 1, file=file, content=text))
    return "\n".join(lines)


def network_files(output: bytes) -> list[str]:
    """Return the files that `network_script` printed."""
    return [file for file in NETWORK_FILES if f"N {file}\n".encode() in output]


def removal_script(paths: Sequence[str]) -> list[str]:
    """Return lines that remove the paths."""
    return [f"rm -rf -- {' '.join(map(_pattern, paths[at : at + _MANY]))}" for at in range(0, len(paths), _MANY)]


def _pattern(path: str) -> str:
    """`docker diff` writes U+FFFD for each byte of a name that is no UTF-8: other such names go, too."""
    return "[!!-~]*".join(map(_quoted, re.split("\ufffd+", path)))


def _quoted(path: str) -> str:
    """For a shell whose input is UTF-8: other bytes and line breaks pass through printf."""
    if re.fullmatch(r"[ -~]*", path):
        return shlex.quote(path)
    octal = "".join(f"\\0{byte:03o}" for byte in path.encode(errors="surrogateescape"))
    return f"\"$(printf %b '{octal}')\""
