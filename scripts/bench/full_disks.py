"""The disk of the run directory filled at random instants of a run, emptied and resumed each time. Needs root.

    python -m scripts.bench.full_disks [--times 6] [--steps 6] [--seed 0] [--write]

A real server, real containers, the quickstart's policy and tasks; the run directory is on a file system of its own.
"""

import argparse
import contextlib
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from scripts.bench import report
from scripts.bench.journal import audit, phase
from scripts.bench.small_run import N_TRIALS, SAVE_EVERY, Server, server, start
from src.run.directory import RunDirectory
from src.run.jsonl import read_lines

DISK_MIB = 64
LONGEST_LIFE_SEC = 20.0  # from the first line of its ledger to the full disk
FAULTS = report.ROOT / "docs" / "faults.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=6)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the table into docs/faults.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-full-") as name, small_disk(Path(name)) as disk, server() as made:
        _measure(arguments, made, RunDirectory(disk / "run"), Path(name) / "log")


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def _measure(arguments: argparse.Namespace, made: Server, run: RunDirectory, log: Path) -> None:
    chance = random.Random(arguments.seed)
    ballast = run.path.parent / "ballast"
    statuses: Counter[int] = Counter()
    phases: Counter[str] = Counter()
    for number in range(arguments.times):
        since = run.ledger.stat().st_size if run.ledger.exists() else 0
        trainer = start(made, run, arguments.steps, log)
        while not trainer.ended and (not run.ledger.exists() or run.ledger.stat().st_size <= since):
            time.sleep(0.05)
        deadline = time.monotonic() + chance.uniform(0.0, LONGEST_LIFE_SEC)
        while not trainer.ended and time.monotonic() < deadline:
            time.sleep(0.05)
        if trainer.ended:
            break
        phases[phase(run, since, SAVE_EVERY, N_TRIALS)] += 1
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        statuses[trainer.status()] += 1
        ballast.unlink()
        print(f"{number + 1}: {dict(phases)} {dict(statuses)}", flush=True)
    start(made, run, arguments.steps, log).wait()
    _publish(arguments, run, log.read_text(), statuses, phases)


def _publish(
    arguments: argparse.Namespace, run: RunDirectory, log: str, statuses: Counter[int], phases: Counter[str]
) -> None:
    result = audit(run, arguments.steps)
    told = [line for line in log.splitlines() if line.startswith("error: ")]
    fates = Counter(r["fate"].split()[0] for r in read_lines(run.ledger) if r["event"] == "ended")
    rows = [
        ["times that the disk was filled, during", ", ".join(f"{name} {n}" for name, n in phases.most_common())],
        ["exit status of the process", ", ".join(f"{status} ({n} times)" for status, n in statuses.items())],
        ["lines of error; tracebacks", f"{len(told)}; {log.count('Traceback')}"],
        ["trials by what became of them", ", ".join(f"{n} {fate}" for fate, n in fates.most_common())],
        ["finished trials run again; tasks quarantined", f"{result.repeated}; {fates['quarantined']}"],
        ["steps skipped or doubled; with other datums", f"{result.skipped_or_doubled}; {result.differing}"],
        ["damaged lines; rows of metrics.jsonl missing or doubled", f"0; {result.rows_wrong}"],
    ]
    report.show("full disks", ["", ""], rows)
    print("\n".join(told[:3]))
    if arguments.write:
        head = report.circumstances("scripts.bench.full_disks")
        report.replace_part(FAULTS, "full-disks", f"{head}\n\n{report.markdown(['', ''], rows)}")


if __name__ == "__main__":
    main()
