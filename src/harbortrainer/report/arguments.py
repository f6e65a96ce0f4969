"""Arguments of `harbortrainer report`."""

from collections.abc import Sequence
from pathlib import Path

import chz

from harbortrainer.errors import UserError
from harbortrainer.setting import FROM_0, field

MOST_PANELS = 300  # trials in full, of all runs together


@chz.chz
class ReportArgs:
    run_dir: tuple[str, ...] = field(doc="folders of runs")
    out: str | None = field(
        None, "file to write; None = report.html in the run directory, comparison.html in the first of several"
    )
    panels: int = field(
        MOST_PANELS, "trials shown with conversation and tokens; all others are rows of a table", check=FROM_0
    )


def places(args: ReportArgs) -> tuple[Sequence[Path], Path | None]:
    """Folders of the runs, and the file. Raises UserError for a folder that is named twice."""
    runs = [Path(name) for name in args.run_dir]
    if len({path.resolve() for path in runs}) < len(runs):
        raise UserError("run_dir: the same folder is named twice; name each run once")
    if args.out is not None:
        return runs, Path(args.out)
    return runs, runs[0] / "comparison.html" if len(runs) > 1 else None
