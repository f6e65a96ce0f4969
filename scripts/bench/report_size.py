"""The report of a large run: how long it takes, how large it is, how fast Chromium opens it, what its console says.

    python -m scripts.bench.report_size [trials=10000] [turns=6] [run=FOLDER] [pictures=FOLDER]

`run`: where the made-up run is kept, and taken from when it is there already.

Exit status 1 when a bar is missed: 30 s to make, 25 MB, 3 s to open, no console error.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from scripts.bench.browser import Page, browser
from src.report.write import write_report
from tests.support.made_run import MadeRun

READY = "document.documentElement.dataset.ready"
MOST_SECONDS, MOST_BYTES, MOST_OPEN_SECONDS = 30.0, 25_000_000, 3.0
TASKS, GROUP, EVALUATIONS = 16, 16, 10
SETTLE_MS = 800  # for plots that draw when they are seen


def main(arguments: list[str]) -> int:
    given: dict[str, str] = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(given.get("run", f"{folder}/large"))
        if not run.exists():
            with patch.object(os, "fsync"):  # what is made up need not survive a crash
                _make(run, int(given.get("trials", "10000")), int(given.get("turns", "6")))
        return _measure(run, Path(given["pictures"]) if "pictures" in given else None)


def _measure(run: Path, pictures: Path | None) -> int:
    print(f"{'trials':>10} {len(list((run / 'rollouts').glob('*/*')))}", flush=True)
    started, cpu = time.monotonic(), time.process_time()
    file = write_report(run)
    seconds, size = time.monotonic() - started, file.stat().st_size
    cpu = time.process_time() - cpu
    with browser() as page:
        page.look(1280)
        page.ask("Performance.enable", timeDomain="threadTicks")
        opened = page.open(file, READY)
        spent = {metric["name"]: metric["value"] for metric in page.ask("Performance.getMetrics")["metrics"]}
        problems = _walk(page, pictures)
    print(f"{'made in':>10} {seconds:.1f} s, of it {cpu:.1f} s CPU (bar {MOST_SECONDS:g})")
    print(f"{'size':>10} {size / 1e6:.1f} MB (bar {MOST_BYTES / 1e6:g})")
    print(f"{'opens in':>10} {opened:.2f} s, of it {spent['TaskDuration']:.2f} s CPU (bar {MOST_OPEN_SECONDS:g})")
    print(f"{'console':>10} {problems or 'no error'}", flush=True)
    kept = seconds <= MOST_SECONDS and size <= MOST_BYTES and opened <= MOST_OPEN_SECONDS
    return 0 if kept and not problems else 1


def _make(path: Path, trials: int, turns: int) -> None:
    made = MadeRun(path, tasks=TASKS, group=GROUP, turns=turns)
    steps = max(trials // (TASKS * GROUP) - EVALUATIONS, 1)
    made.evaluate()
    for step in range(steps):
        made.train(step, evaluate=step % max(steps // EVALUATIONS, 1) == 0)


def _walk(page: Page, pictures: Path | None) -> list[str]:
    """Look at everything in both colour schemes and widths, and open trials. What the console said."""
    for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
        page.look(width, 900, dark=dark)
        page.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        page.look(width, min(int(page.value("document.documentElement.scrollHeight")), 12_000), dark=dark)
        page.value(f"new Promise((go) => setTimeout(go, {SETTLE_MS}))")
        if pictures:
            page.picture(pictures / f"page_{width}_{'dark' if dark else 'light'}.png")
        page.look(width, 900, dark=dark)
        page.value("document.querySelector('#trials tr.opens').click()")
        page.value(f"new Promise((go) => setTimeout(go, {SETTLE_MS}))")
        if pictures:
            page.picture(pictures / f"trial_{width}_{'dark' if dark else 'light'}.png")
        page.value("document.querySelector('dialog').close()")
    return page.problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
