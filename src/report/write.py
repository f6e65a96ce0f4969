"""From run directories to report.html."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from src.errors import UserError
from src.report.arguments import MOST_PANELS
from src.report.choice import choose
from src.report.page import packed, page
from src.report.panel import panel
from src.report.pieces import Pieces
from src.report.run import RunRecord, read_run
from src.report.units import unit
from src.run.files import replace_text

NAME = "report.html"
ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # values of another shape than ours
MOST_BYTES = 14_000_000  # of them in the page


def write_report(*runs: Path, out: Path | None = None, panels: int = MOST_PANELS) -> Path:
    """Write the page of these runs, beside the first one's files unless `out` says where; returns where it is.

    `panels`: trials shown in full, at most. Raises UserError for a folder that is no run or has a damaged file,
    DiskFault.
    """
    records = [read_run(path) for path in runs]
    target = (out or records[0].run.path / NAME).expanduser().resolve()
    blobs = _panels(records, panels)
    metrics = sorted({name for record in records for name in record.shown["metrics"]["values"]})
    data = {
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "runs": [record.shown | {"root": _link(record, target)} for record in records],
        "units": {name: unit(name) for name in metrics},
    }
    title = " · ".join(record.run.name for record in records)
    replace_text(target, page(title, packed(data), blobs))
    return target


def leave_report(run: Path) -> str:
    """For the end of a run: writes its report and says so in a line, or why there is none.

    Whatever the files hold, it raises nothing: a report is no reason for a run to end badly.
    """
    try:
        return f"report: {write_report(run)}"
    except (UserError, OSError) as error:
        return f"no report: {error}"
    except ODD as error:
        return f"no report: {run} holds what no run writes ({type(error).__name__}: {error})"


def _panels(records: Sequence[RunRecord], most: int) -> list[str]:
    """Packed panels, as many as fit; each record's `panels` says which trial has which."""
    share = most // max(len(records), 1)
    made: list[tuple[RunRecord, int, dict[str, Any]]] = []
    for record in records:
        pieces = Pieces(str(record.config.get("model_name") or ""))
        trials = record.trials
        made += [(record, index, panel(record.run.path, trials[index], pieces)) for index in choose(trials, share)]
    texts = _share_texts([shown for _, _, shown in made])
    blobs: list[str] = [packed(texts)]
    left = MOST_BYTES - len(blobs[0])
    for record in records:
        record.shown["panels"] = {}
    for record, index, shown in made:
        blob = packed(shown)
        if len(blob) <= left:
            left -= len(blob)
            record.shown["panels"][index] = len(blobs)
            blobs.append(blob)
    return blobs


def _share_texts(panels: Sequence[dict[str, Any]]) -> list[str]:
    """Replaces a first message that several trials have by its number in the list that is returned."""
    firsts = [shown["messages"][0] for shown in panels if shown["messages"]]
    counts = Counter(message["text"] for message in firsts)
    numbers = {text: number for number, text in enumerate(text for text, n in counts.items() if n > 1)}
    for message in firsts:
        message["text"] = numbers.get(message["text"], message["text"])
    return list(numbers)


def _link(record: RunRecord, target: Path) -> str:
    """The run directory as the page's links begin: relative, with a slash at its end unless it is the page's own."""
    path = os.path.relpath(record.run.path, target.parent)
    return "" if path == "." else quote(path) + "/"
