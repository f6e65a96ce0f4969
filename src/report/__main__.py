"""`python -m src.report RUN_DIR [RUN_DIR2 ...] [out=FILE] [panels=N]`: one static page of one run, or of several."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from src.command_line import tell_result
from src.errors import UserError
from src.report.write import MOST_PANELS, NAME, write_report

HELP = f"""python -m src.report RUN_DIR [RUN_DIR2 ...] [out=FILE] [panels=N]

Writes one HTML page that needs no server and no network. Several runs are drawn over each other.

  out=FILE     where to; default: {NAME} in the run directory, comparison.html in the first one of several
  panels=N     trials shown with conversation and tokens, default {MOST_PANELS}; all others are rows of a table"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 a mistake or fault, told in a line."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    return tell_result(sys.argv[1:] if argv is None else argv, HELP, _write)


def _write(arguments: Sequence[str]) -> Path:
    out, panels, runs = None, MOST_PANELS, []
    for argument in arguments:
        name, given, value = argument.partition("=")
        if given and name.lstrip("-") == "out":
            out = Path(value)
        elif given and name.lstrip("-") == "panels":
            if not value.isdecimal():
                raise UserError(f"panels={value}: must be a number of trials, 0 or more")
            panels = int(value)
        else:
            runs.append(Path(argument))
    if not runs:
        raise UserError("RUN_DIR: missing; give the folder of a run")
    if len({path.resolve() for path in runs}) < len(runs):
        raise UserError("RUN_DIR: the same folder is named twice; name each run once")
    if out is None and len(runs) > 1:
        out = runs[0] / "comparison.html"
    return write_report(*runs, out=out, panels=panels)


if __name__ == "__main__":
    sys.exit(main())
