#!/usr/bin/env python
"""Run pyright over the files in which it may find other faults than when it last found none.

What it finds depends on the file, on all that this imports, directly or not, on the packages and on the settings.
`.state/types.json` has a digest of these for each file; without it, as in CI, every file is checked.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SHARED = ("pyproject.toml", "typings/**/*.pyi", "scripts/check_types.py")
IMPORT = re.compile(r"^\s*(?:from\s+(\.*)([\w.]*)\s+)?import\s+(\([^)]*\)|.+)", re.MULTILINE)


def imports(file: str, text: str, paths: Sequence[str]) -> Iterator[str]:
    """Yield every path at which a module can be whose names the text takes.

    `paths`: folders where modules are found, besides that of the file. A package above a module that is named behind
    `from` gives no name.
    """
    folder = file.split("/")[:-1]
    for dots, module, words in IMPORT.findall(text):
        above = [folder[: len(folder) + 1 - len(dots)]] if dots else [folder, *(path.split("/") for path in paths)]
        for part in re.findall(r"[\w.]+|\*", re.sub(r"#.*", "", words)):
            steps = [step for step in f"{module}.{part}".split(".") if step]
            first = len(steps) - 1 if dots or module else 1
            for start, end in ((start, end) for start in above for end in range(first, len(steps) + 1)):
                path = "/".join([*filter(None, start), *steps[:end]])
                yield from (f"{path}.py", f"{path}/__init__.py")


def digests(texts: Mapping[str, str], shared: str, paths: Sequence[str]) -> dict[str, str]:
    """Return of each file a digest of it, of all that it imports, and of `shared`."""
    direct = {file: texts.keys() & imports(file, text, paths) for file, text in texts.items()}
    made: dict[str, str] = {}
    for file in texts:
        found, left = {file}, [file]
        while left:
            more = direct[left.pop()] - found
            found |= more
            left += more
        parts = [shared, *(f"{name}\n{texts[name]}" for name in sorted(found))]
        made[file] = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return made


def _digests(root: Path) -> dict[str, str]:
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pyright"]
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *settings["include"]]
    files = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    left_out = tuple(settings["exclude"])
    kept = [file for file in files if file.endswith(".py") and not file.startswith(left_out)]
    texts = {file: (root / file).read_text() for file in kept if (root / file).is_file()}
    shared = [path.read_text() for pattern in SHARED for path in sorted(root.glob(pattern))]
    packages = [path.stat().st_mtime_ns for path in root.glob(".venv/lib/*/site-packages")]
    return digests(texts, f"{shared} {packages}", ["", *settings["extraPaths"]])


def main(command: Sequence[str], root: Path) -> int:
    """Give the files to the command, and return its status; with 0 they are known."""
    now, known = _digests(root), root / ".state" / "types.json"
    before = json.loads(known.read_text()) if known.is_file() else {}
    files = [file for file, digest in now.items() if before.get(file) != digest]
    print(f"types: {len(files)} of {len(now)} files", flush=True)
    if files and (status := subprocess.run([*command, *files], cwd=root).returncode):
        return status
    known.parent.mkdir(exist_ok=True)
    made = known.with_suffix(f".{os.getpid()}")  # other working trees can share the folder
    made.write_text(json.dumps(now))
    made.replace(known)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parent.parent))
