"""The network files of one container, which Docker mounts: shell text that lists them, and how they are compared."""

import re

from harbortrainer.docker.box.container import HOSTNAME, NETWORK_FILES

# Prints their content. Builtins only; of an endless file no more than a program would take as such a list.
READ_NETWORK = f"""r="read -r"; [ -z "$BASH_VERSION" ] || r="read -r -n 4096"
for f in {" ".join(NETWORK_FILES)}; do i=0
{{ while IFS= $r l || [ -n "$l" ]; do printf '%s\\n' "N$f $l"; i=$((i+1)); [ $i -lt 1000 ] || break
done <$f && echo "E$f"; }} 2>/dev/null
done"""
# Docker itself adds and removes the container's own name as it joins and leaves a network.
_OWN_NAME = re.compile(rf"^[0-9a-f.:]+\t{HOSTNAME}\n", re.MULTILINE)


def parse_network(listed: str) -> dict[str, str]:
    """Return the output of READ_NETWORK: content by path."""
    lines: dict[str, list[str]] = {}
    whole: list[str] = []
    for line in listed.split("\n"):  # at no other character: the agent may have written these lines
        key, _, value = line.partition(" ")
        if key[:1] == "N" and key[1:] in NETWORK_FILES:
            lines.setdefault(key[1:], []).append(value)
        elif key[:1] == "E":
            whole.append(key[1:])
    return {file: "".join(f"{line}\n" for line in lines.get(file, ())) for file in whole}


def is_same(content: str, known: str) -> bool:
    """Return whether a file has the content that READ_NETWORK showed, but for the container's own name."""
    return _others(content) == _others(known)


def added(content: str, known: str) -> str:
    """Return the lines that a file has after those that READ_NETWORK showed; "" = these are others now."""
    now, old = _others(content), _others(known)
    return now.removeprefix(old) if now.startswith(old) else ""


def _others(content: str) -> str:
    lines = content if content.endswith("\n") or not content else f"{content}\n"
    return _OWN_NAME.sub("", lines)
