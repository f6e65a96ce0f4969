#!/usr/bin/env python
"""Write the table of every field into README.md, from src/config.py. `--check` only says whether it is up to date."""

import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import chz  # noqa: E402

from src.config import Config  # noqa: E402

START, END = "<!-- fields: scripts/write_fields.py -->", "<!-- /fields -->"


def table() -> str:
    """Markdown: a heading for each comment group of Config, a row for each field."""
    lines = [START, "", "## Every field"]
    blueprint_help = chz.chz_fields(Config)
    for line in inspect.getsource(Config).splitlines():
        if group := re.match(r"\s+# -- (.+)", line):
            lines += ["", f"**{group.group(1)}**", "", "| field | default | meaning |", "| --- | --- | --- |"]
        elif (name := re.match(r"\s+(\w+):", line)) and name.group(1) in blueprint_help:
            lines.append(_row(name.group(1)))
    return "\n".join([*lines, "", END])


def _row(name: str) -> str:
    default = getattr(Config(model_name="", tasks_dir=""), name)
    required = name in ("model_name", "tasks_dir")
    shown = "required" if required else "none" if default in (None, {}, ()) else f"`{default}`"
    return f"| `{name}` | {shown} | {_doc(name)} |"


def _doc(name: str) -> str:
    source = inspect.getsource(Config)
    match = re.search(rf"^\s+{name}:.*?doc=\"(.*?)\"", source, re.DOTALL | re.MULTILINE)
    return match.group(1).replace("|", "\\|") if match else ""


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    new = re.sub(f"{re.escape(START)}.*?{re.escape(END)}", lambda _: table(), text, flags=re.DOTALL)
    if "--check" in sys.argv:
        return int(new != text)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
