"""A small Harbor task, written to a folder."""

from collections.abc import Mapping
from pathlib import Path

BASE = "FROM harbortrainer/base:bookworm\n"
SOLVE = "echo Hello > hello.txt\n"
TEST = '[ "$(cat hello.txt 2>/dev/null)" = Hello ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'


def write_task(
    folder: Path,
    *,
    dockerfile: str | None = BASE + "WORKDIR /app\n",
    toml: str = "",
    test: str = TEST,
    solve: str = SOLVE,
    files: Mapping[str, str] | None = None,
    head: str = 'schema_version = "1.4"\n[task]\nname = "test/{name}"\n',
) -> Path:
    """A task named `folder`; `files` (path -> text) are added or replace what is there."""
    contents = {
        "task.toml": head.format(name=folder.name) + toml,
        "instruction.md": "Write Hello to hello.txt.\n",
        "tests/test.sh": f"#!/bin/bash\n{test}",
        "solution/solve.sh": f"#!/bin/bash\n{solve}",
    }
    if dockerfile is not None:
        contents["environment/Dockerfile"] = dockerfile
    for name, text in (contents | dict(files or {})).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "environment").mkdir(exist_ok=True)
    return folder


# apt-get of a machine with a mirror: it brings tmux from another place of the image, and counts its calls
MIRROR = """RUN mv /usr/bin/tmux /opt/tmux && rm /usr/bin/apt-get && printf '%s\\n' '#!/bin/sh' \\
  'for last; do :; done; [ "$last" = update ] || { echo call >> /opt/calls; cp /opt/tmux /usr/bin/tmux; }' \\
  > /usr/bin/apt-get && chmod 755 /usr/bin/apt-get
"""
