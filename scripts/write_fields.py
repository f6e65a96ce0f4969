#!/usr/bin/env python
"""Write docs/settings.md, the table of every field, from the Config class. `--check` says whether it is up to date."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harbortrainer.cli.output import field_groups  # noqa: E402
from harbortrainer.config import SETTINGS, Config, TrialSettings  # noqa: E402
from harbortrainer.setting import Resume, settings, shown  # noqa: E402

PAGE = ROOT / "docs" / "settings.md"
HEAD = """# Every setting

Written by `scripts/write_fields.py` from `src/harbortrainer/config.py`. `harbortrainer train --help` prints the same.

What a resumed run does with another value: **fixed** refuses it; **next step** takes it from the first step that was
not trained on yet; **length** moves the end of the run, and a learning rate that decays follows; **tasks** takes it if
the files of the tasks are the same; an empty cell takes it, no number depends on it. An evaluation has the settings
marked *E*; a continued one refuses another value where a class stands.
"""
CLASSES = {
    Resume.FIXED: "fixed", Resume.NEXT_STEP: "next step", Resume.LENGTH: "length", Resume.TASKS: "tasks",
    Resume.ADDRESS: "", Resume.HARMLESS: "",
}  # fmt: skip


def page() -> str:
    """Markdown: a heading for each comment group of Config, a row for each field."""
    lines = [HEAD]
    for group, names in field_groups(Config).items():
        lines += [f"## {group}", "", "| field | default | meaning | resume | |", "| --- | --- | --- | --- | --- |"]
        lines += [*map(_row, names), ""]
    return "\n".join(lines)


def _row(name: str) -> str:
    one = SETTINGS[name]
    usual = "required" if one.required else "none" if one.default in (None, {}, ()) else f"`{shown(one.default)}`"
    evaluated = "*E*" if name in settings(TrialSettings) else ""
    return f"| `{name}` | {usual} | {one.doc.replace('|', chr(92) + '|')} | {CLASSES[one.resume]} | {evaluated} |"


def main() -> int:
    if "--check" in sys.argv:
        return int(page() != PAGE.read_text())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
