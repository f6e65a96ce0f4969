#!/usr/bin/env python
"""Write the reference pages of docs/ from the code. `--check` says whether they are up to date."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harbortrainer.cli.main import HEADS, TABLE, load  # noqa: E402
from harbortrainer.cli.output import field_groups  # noqa: E402
from harbortrainer.commands import SCRIPTS  # noqa: E402
from harbortrainer.config import SETTINGS, Config, TrialSettings  # noqa: E402
from harbortrainer.run.catalogue import metrics  # noqa: E402
from harbortrainer.setting import Resume, Setting, settings, shown  # noqa: E402
from harbortrainer.sft_config import SftConfig  # noqa: E402
from scripts.floors import modules_page  # noqa: E402

PAGE, COMMANDS, METRICS, MODULES = (
    ROOT / "docs" / f"{name}.md" for name in ("settings", "commands", "metrics", "modules")
)
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
BAR = "\\|"  # within a cell
COLUMNS = ("| field | default | meaning | resume | |", "| --- | --- | --- | --- | --- |")
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
        lines += [f"## {group}", "", *COLUMNS]
        lines += [*(_row(name, SETTINGS[name]) for name in names), ""]
    own = settings(SftConfig)
    lines += ["## `harbortrainer sft`", "", SFT_HEAD, "", *COLUMNS]
    lines += [_row(name, own[name]) for name in own if name not in SETTINGS or own[name] != SETTINGS[name]]
    return "\n".join([*lines, ""])


def _row(name: str, one: Setting) -> str:
    usual = "required" if one.required else "none" if one.default in (None, {}, ()) else f"`{shown(one.default)}`"
    evaluated = "*E*" if name in settings(TrialSettings) else ""
    return f"| `{name}` | {usual} | {one.doc.replace('|', BAR)} | {CLASSES[one.resume]} | {evaluated} |"


COMMANDS_HEAD = """# Commands

`scripts/write_fields.py` writes this page from the table of commands. Each command prints its own part with `--help`.
`harbortrainer NAME` works in every folder; in a checkout `python -m src.NAME` is the same.

| command | what it does |
| --- | --- |
"""
SCRIPTS_HEAD = """## Scripts

These commands run files of the repository, which a wheel brings along.

| command | file |
| --- | --- |
"""
ELSEWHERE = {"train": "all of [settings](settings.md)", "sft": "those of [settings](settings.md#harbortrainer-sft)"}


def commands_page() -> str:
    """Markdown: a table of all commands, then the fields of each that has some of its own."""
    parts = [COMMANDS_HEAD + "\n".join(_cells(name, *HEADS[name]) for name in sorted(HEADS))]
    for name in sorted(TABLE):
        if name in ELSEWHERE:
            parts.append(f"## {name}\n\nFields: {ELSEWHERE[name]}.")
        elif known := settings(load(TABLE[name].kind)):
            own = [one for one in known if one not in SETTINGS or known[one] != SETTINGS[one]]
            shared = ", ".join(f"`{one}`" for one in known if one not in own)
            more = f"\n\nAnd, as in the [settings](settings.md) of a run: {shared}." if shared else ""
            fields = "\n".join(_field(one, known[one]) for one in own)
            parts.append(f"## {name}\n\n| field | default | meaning |\n| --- | --- | --- |\n{fields}{more}")
    files = "\n".join(f"| `{name}` | `{script.path}` |" for name, script in SCRIPTS.items())
    parts.append(f"{SCRIPTS_HEAD}{files}")
    return "\n\n".join(parts) + "\n"


def _cells(name: str, usage: str, about: str) -> str:
    return f"| `{f'harbortrainer {name} {usage}'.replace('|', BAR)}` | {about} |"


def _field(name: str, one: Setting) -> str:
    usual = "required" if one.required else "none" if one.default in (None, {}, ()) else f"`{shown(one.default)}`"
    return f"| `{name}` | {usual} | {one.doc.replace('|', BAR)} |"


METRICS_HEAD = """# Metrics

`scripts/write_fields.py` writes this page from `src/harbortrainer/run/catalogue.csv`. The report shows the same where
the pointer rests on a plot.

`runs/NAME/metrics.jsonl` has one row a step, and wandb the same rows, under `global_step`: 0 is before training, n is
after the n-th batch. Folders and `ledger.jsonl` count batches from 0: row n belongs to `step_00000(n-1)`. A row leaves
out columns without a value: a mean over nothing is absent, it is no 0. "Trial" means a trial that fills a slot of a
group; "graded" means that the verifier gave it a reward.

`NAME/domain/…`, `NAME/source/…` and `NAME/difficulty/…` cover the tasks of one domain (`metadata.category` of
task.toml), one source, or one part of the measured difficulty ([tasks.md](tasks.md#difficulty)), if a run has several.
The 20 with the most tasks have their own columns; the others share `other`.
`NAME/agent/…` covers the groups of one agent, if `agent` names several.

| question | look first at |
| --- | --- |
| Does it learn? | reward/mean, eval/reward_mean |
| Do the groups carry a signal? | group/constant_fraction |
| Do trials end as they should? | outcome/, turn/parse_failure_rate |
| Has it left its start? | kl/start |
| Is it trained on what it sampled? | logprobs/kl_sampler_trainer |
| What limits the speed? | [speed.md](speed.md) |
"""


def metrics_page() -> str:
    """Markdown: a table for each group of metrics, and what holds for all of the group."""
    lines, group, table = [METRICS_HEAD], "", False
    for one in metrics():
        if one.group != group:
            group, table = one.group, False
            lines += ["", f"## {group}", ""]
        if not one.name:
            lines += ["", one.what, ""] if table else [one.what, ""]
        elif not table:
            lines += ["| metric | unit | what it is | how to read it |", "| --- | --- | --- | --- |"]
        table = bool(one.name)
        if table:
            cells = (cell.replace("|", BAR) for cell in (f"`{one.name}`", one.unit, one.what, one.read))
            lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*lines, ""]))


def main() -> int:
    made = {PAGE: page(), COMMANDS: commands_page(), METRICS: metrics_page(), MODULES: modules_page()}
    if "--check" in sys.argv:
        return int(any(not file.is_file() or file.read_text() != text for file, text in made.items()))
    for file, text in made.items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
