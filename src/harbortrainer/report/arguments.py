"""Arguments of the commands `report` and `watch`."""

import chz

from harbortrainer.setting import FROM_0, PORT, field

MOST_PANELS = 300  # trials in full, of all runs together


@chz.chz
class ReportArgs:
    run_dir: tuple[str, ...] = field(doc="folders of runs")
    out: str | None = field(
        None, "file to write; None = report.html in the run directory, comparison.html in the first of several"
    )
    panels: int = field(
        MOST_PANELS, "most trials shown with conversation and tokens; the others are rows of a table", check=FROM_0
    )


@chz.chz
class WatchArgs:
    run_dir: tuple[str, ...] = field(doc="folders of runs")
    port: int = field(8321, "port on 127.0.0.1; 0 = a free one", check=PORT)
