"""Writes report.html from run directories: one file that needs no other, with the runs' values as compressed JSON."""

import asyncio
import base64
import gzip
import hashlib
import html
import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harbortrainer.durable.files import replace_text
from harbortrainer.errors import UserError
from harbortrainer.report.arguments import MOST_PANELS, ReportArgs
from harbortrainer.report.panel import Pieces, panel
from harbortrainer.report.run import RunRecord, read_run
from harbortrainer.report.trials import choose
from harbortrainer.run.catalogue import metric_of
from harbortrainer.run.directory import base_model

_STATIC = Path(__file__).with_name("static")
_SCRIPTS = (
    "elements", "scales", "plots", "table", "replay", "trial", "sections", "ages", "costs", "tables", "live", "main",
)  # fmt: skip


def as_json(value: Any) -> str:
    """Return JSON whose NaN and infinities are null: a browser reads none."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"))


def packed(value: Any) -> str:
    """Return JSON, gzipped, in base64, which needs no escaping in HTML."""
    return base64.b64encode(gzip.compress(as_json(value).encode(), 6, mtime=0)).decode()


def page(title: str, blobs: Mapping[str, str]) -> str:
    """Return the HTML. `blobs`: values from `packed` by name; without any the page asks its server for them.

    By its policy, browsers run no script but the page's own.
    """
    script = "\n".join((_STATIC / f"{name}.js").read_text() for name in _SCRIPTS)
    script = f'"use strict";\n{script}'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    policy += "" if blobs else "; connect-src 'self'"
    held = "\n".join(f'<script type="text/plain" id="{name}">{blob}</script>' for name, blob in blobs.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>{(_STATIC / "page.css").read_text()}</style>
</head>
<body>
<noscript>This report draws itself: allow scripts for this file.</noscript>
<main id="page"><p id="waiting">Unpacking…</p></main>
{held}
<script>{script}</script>
</body>
</html>
"""


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


NAME = "report.html"
ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # a file that no run wrote
MOST_BYTES = 14_000_000  # of all panels in the page


def write_report(*runs: Path, out: Path | None = None, panels: int = MOST_PANELS, most_bytes: int = MOST_BYTES) -> Path:
    """Write the page of these runs, in the first one's directory unless `out` names a file. Returns its path.

    `panels`: most trials shown in full, in `most_bytes`. Raises UserError for a folder without a run or a damaged file,
    DiskFault.
    """
    records = [read_run(path) for path in runs]
    target = (out or records[0].run.path / NAME).expanduser().resolve()
    blobs = {f"panel{index}": blob for index, blob in enumerate(_panels(records, panels, most_bytes))}
    for record in records:
        record.shown["root"] = _link(record, target)
    title = " · ".join(record.run.name for record in records)
    replace_text(target, page(title, {"data": packed(page_data(records)), **blobs}))
    return target


def page_data(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Collect what the page draws, but for its trials in full."""
    names = sorted({name for record in records for name in record.shown["metrics"]["values"]})
    metrics = {name: metric_of(name) for name in names}
    return {
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "runs": [record.shown for record in records],
        "units": {name: metric.unit for name, metric in metrics.items()},
        "about": {name: metric.plain for name, metric in metrics.items() if metric.what},
    }


def leave_report(run: Path) -> str:
    """Write the report at the end of a run; returns a line with its path, or with the reason why there is none.

    Never raises: a report must not fail a run.
    """
    try:
        return f"report: {write_report(run)}"
    except (UserError, OSError) as error:
        return f"no report: {error}"
    except ODD as error:
        return f"no report: {run} holds what no run writes ({type(error).__name__}: {error})"


def _panels(records: Sequence[RunRecord], most: int, most_bytes: int) -> list[str]:
    """Packed panels, as many as fit; sets each record's `panels`: index of a trial -> number of its panel."""
    share = most // max(len(records), 1)
    made: list[tuple[RunRecord, int, dict[str, Any]]] = []
    for record in records:
        pieces = Pieces(base_model(record.run) if record.run.config.is_file() else "")
        trials = record.trials
        made += [(record, index, panel(record.run.path, trials[index], pieces)) for index in choose(trials, share)]
    texts = _share_texts([shown for _, _, shown in made])
    blobs: list[str] = [packed(texts)]
    left = most_bytes - len(blobs[0])
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
    """Replace first messages that several trials share by their index in the returned list."""
    firsts = [shown["messages"][0] for shown in panels if shown["messages"]]
    counts = Counter(message["text"] for message in firsts)
    numbers = {text: number for number, text in enumerate(text for text, n in counts.items() if n > 1)}
    for message in firsts:
        message["text"] = numbers.get(message["text"], message["text"])
    return list(numbers)


def _link(record: RunRecord, target: Path) -> str:
    """Prefix of the page's links into the run directory: relative, "" for the page's own folder."""
    path = os.path.relpath(record.run.path, target.parent)
    return "" if path == "." else quote(path) + "/"


def distinct(names: Sequence[str]) -> list[Path]:
    """Return folders of runs. Raises UserError for one named twice."""
    runs = [Path(name) for name in names]
    if len({path.resolve() for path in runs}) < len(runs):
        raise UserError("run_dir: the same folder is named twice; name each run once")
    return runs


async def report(args: ReportArgs) -> int:
    """Exit status 0. Raises UserError for a folder without a run, one named twice, or a file that cannot be written."""
    runs = distinct(args.run_dir)
    out = runs[0] / "comparison.html" if len(runs) > 1 else None
    if args.out is not None:
        out = Path(args.out)
    try:
        print(await asyncio.to_thread(write_report, *runs, out=out, panels=args.panels))
    except OSError as error:
        raise UserError(
            f"out={out or runs[0] / NAME}: no page was made ({error.strerror}: {error.filename}); name a file in a "
            "folder in which you may write"
        ) from None
    return 0
