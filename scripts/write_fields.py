#!/usr/bin/env python
"""Write docs/settings.md, the table of every field, from the Config class. `--check` says whether it is up to date."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harbortrainer.cli.output import field_groups  # noqa: E402
from harbortrainer.config import SETTINGS, Config, TrialSettings  # noqa: E402
from harbortrainer.setting import Resume, Setting, settings, shown  # noqa: E402
from harbortrainer.sft_config import SftConfig  # noqa: E402

PAGE = ROOT / "docs" / "settings.md"
HEAD = """# Settings

`scripts/write_fields.py` writes this page from `src/harbortrainer/config.py`. `harbortrainer train --help` prints the
same.

The column *resume* says what a resumed run does with another value:

| resume | another value |
| --- | --- |
| fixed | is refused: it would be another run |
| next step | holds from the first step that was not trained on yet |
| length | changes the last step; a decaying learning rate follows |
| tasks | is accepted if the content of the tasks is the same |
| (empty) | is accepted: no result depends on it |

*E* marks the settings of `harbortrainer evaluate`. A continued evaluation refuses another value of a setting whose
cell is not empty.
"""
TABLE = ("| field | default | meaning | resume | |", "| --- | --- | --- | --- | --- |")
SFT_HEAD = (
    "[Fine-tuning](sft.md) has the settings of model, server, batch length, learning, limits and output above, and:"
)
CLASSES = {
    Resume.FIXED: "fixed", Resume.NEXT_STEP: "next step", Resume.LENGTH: "length", Resume.TASKS: "tasks",
    Resume.ADDRESS: "", Resume.HARMLESS: "",
}  # fmt: skip


def page() -> str:
    """Markdown: a heading for each comment group of Config, a row for each field."""
    lines = [HEAD]
    for group, names in field_groups(Config).items():
        lines += [f"## {group}", "", *TABLE]
        lines += [*(_row(name, SETTINGS[name]) for name in names), ""]
    own = settings(SftConfig)
    lines += ["## `harbortrainer sft`", "", SFT_HEAD, "", *TABLE]
    lines += [_row(name, own[name]) for name in own if name not in SETTINGS or own[name] != SETTINGS[name]]
    return "\n".join([*lines, ""])


def _row(name: str, one: Setting) -> str:
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
