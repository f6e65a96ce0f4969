"""Output of commands: JSON reports, consoles for tables, the help on fields."""

import inspect
import re
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from harbortrainer.durable.files import replace_text
from harbortrainer.errors import UserError
from harbortrainer.setting import settings, shown

if TYPE_CHECKING:
    from rich.console import Console

JSON = "file for the report as JSON, - = standard output instead of the table; None = table only"
UNCUT = 100_000  # columns: no cell is cut
_INDENT = " " * 8


def give_json(text: str, where: str | None) -> bool:
    """Write a report to `where`, the value of the field `json`; True = it is on standard output, print nothing else.

    Raises UserError when the file cannot be written.
    """
    if where == "-":
        print(text)
    elif where:
        try:
            replace_text(Path(where).expanduser(), text + "\n")
        except OSError as error:
            raise UserError(f"json={where}: cannot be written ({error.strerror}); name a file in a folder") from None
    return where == "-"


def wide_console(least: int = 120) -> "Console":
    """Return a console as wide as the terminal; without a terminal at least `least` columns wide."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False, markup=False)  # names and texts of users may have brackets
    if not console.is_terminal:
        console.width = max(least, console.width)
    return console


def field_groups(kind: type) -> dict[str, list[str]]:
    """Return names of fields by the comment `# -- group` above them, those of its bases first."""
    groups: dict[str, list[str]] = {}
    known = settings(kind)
    for base in reversed(kind.__mro__[:-1]):
        group = ""
        for line in inspect.getsource(base).splitlines():
            if head := re.match(r"    # -- (.+)", line):
                group = head[1]
            elif (name := re.match(r"    (\w+): ", line)) and name[1] in known:
                groups.setdefault(group, []).append(name[1])
    return groups


def fields_help(kind: type) -> str:
    """Return every field with its default and meaning, by group."""
    width = min(shutil.get_terminal_size().columns, 120)
    known, lines = settings(kind), []
    for group, names in field_groups(kind).items():
        lines += ["", *([group] if group else [])]
        for name in names:
            setting = known[name]
            usual = "" if setting.required or setting.default in (None, (), {}) else shown(setting.default)
            lines.append(f"  {name}={usual}")
            lines += textwrap.wrap(setting.doc, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)
