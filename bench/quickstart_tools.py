"""The tools' quickstart with several seeds: held-out reward before and after, with 95 % intervals, and what it costs.

    python -m bench.quickstart_tools [--seeds 1,2,3] [--keep FOLDER] [--write]

Each seed is one `./run_quickstart_tools.sh`, from the start of its server to its end. CPU seconds are those of all its
processes. --keep: where the runs stay.
"""

import argparse
import contextlib
import ctypes
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from bench import report
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.directory import RunDirectory

SCRIPT = report.ROOT / "run_quickstart_tools.sh"
LEAST_GAIN, MOST_SEC = 0.30, 480.0
HEADINGS = (
    "seed",
    "held out, before",
    "after",
    "gain",
    "reward, first 3 steps → last 3",
    "trials",
    "tokens",
    "s",
    "CPU s",
)
SUBREAPER = 36  # of prctl: processes whose parents have ended become children of this one, the server among them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--keep", type=Path, help="folder of the runs; without it they are deleted")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    arguments = parser.parse_args()
    adopt()
    rows, wrong = [], list[str]()
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-tools-")))
        for seed in arguments.seeds.split(","):
            row, gain, seconds, _ = train(SCRIPT, seed, folder / f"seed-{seed}")
            rows.append(row)
            print(*row, sep="  ", flush=True)
            wrong += [f"seed {seed}: gain {gain:.2f}"] * (gain < LEAST_GAIN)
            wrong += [f"seed {seed}: {seconds:.0f} s"] * (seconds > MOST_SEC)
    document = report.RESULTS if arguments.write else None
    report.publish("bench.quickstart_tools", "quickstart-tools", HEADINGS, rows, document, wrong=wrong)


def adopt() -> None:
    """Count the CPU time of processes whose parents end before them."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def train(
    script: Path, seed: str, folder: Path, *settings: str
) -> tuple[list[str], float, float, list[dict[str, Any]]]:
    """One run of a quickstart. Raises CalledProcessError.

    Row of the table, gain on the held-out tasks, seconds of the whole command, rows of the metrics.
    """
    began, cpu = time.monotonic(), _cpu_of_ended()
    subprocess.run([script, f"seed={seed}", f"logs_dir={folder}", *settings], cwd=report.ROOT, check=True)
    seconds = time.monotonic() - began
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            os.waitpid(-1, 0)
    (path,) = [path for path in folder.iterdir() if (path / "metrics.jsonl").exists()]
    rows = read_lines(RunDirectory(path).metrics)
    held_out = [row for row in rows if "eval/reward_mean" in row]
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    gain = held_out[-1]["eval/reward_mean"] - held_out[0]["eval/reward_mean"]
    return (
        [
            *(seed, _interval(held_out[0]), _interval(held_out[-1]), f"{gain:.2f}"),
            f"{fmean(rewards[:3]):.2f} → {fmean(rewards[-3:]):.2f}",
            *(f"{_total(rows, name):.0f}" for name in ("rollout/trials", "train/tokens")),
            *(f"{seconds:.0f}", f"{_cpu_of_ended() - cpu:.0f}"),
        ],
        gain,
        seconds,
        rows,
    )


def _total(rows: list[dict[str, Any]], name: str) -> float:
    return sum(row.get(name, 0.0) for row in rows)


def _interval(row: Mapping[str, float]) -> str:
    return f"{row['eval/reward_mean']:.2f} ({row['eval/reward_low']:.2f} to {row['eval/reward_high']:.2f})"


def _cpu_of_ended() -> float:
    """Seconds of all processes below this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
