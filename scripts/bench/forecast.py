"""What a plan says before a run against what the run then took: short quickstarts, each planned from those before it.

    python -m scripts.bench.forecast [--runs 5] [--steps 3] [--logs FOLDER] [--write]

Runs that are in FOLDER already are planned from too; where there are none, one run more comes first. Tokens are those
of `spend/tokens`; wall time is the process's. Exit status 1 when a number lies outside its range.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.report import ROOT, circumstances, markdown, replace_part, show
from scripts.bench.small_run import MODEL, Trainer, server
from src.run.directory import RunDirectory
from src.run.jsonl import read_lines

SETTINGS = (
    f"backend=skyrl-tx model_name={MODEL} tasks_dir=datasets/quickstart eval_tasks=create-6,copy-6,count-6,append-6 "
    "allow_family_overlap=true eval_every=6 batch_size=4 group_size=4 n_parallel_envs=4 trial_timeout_sec=120 "
    "max_turns=4 max_tokens=32 context_limit=2048 lora_rank=8 learning_rate=5e-3"
).split()  # of run_quickstart.sh, with a third of the trials
HEADINGS = ("run", "tokens planned", "high/low", "used", "inside", "seconds planned", "high/low", "took", "inside")
PAGE = ROOT / "docs" / "budget.md"


@dataclass(frozen=True)
class Measured:
    """`planned`: (low, high)."""

    planned: tuple[float, float]
    took: float

    @property
    def inside(self) -> bool:
        return self.planned[0] <= self.took <= self.planned[1]

    @property
    def cells(self) -> list[str]:
        low, high = self.planned
        return [f"{low:,.0f} to {high:,.0f}", f"{high / low:.2f}", f"{self.took:,.0f}", "yes" if self.inside else "NO"]


def plan(arguments: Sequence[str], file: Path) -> tuple[tuple[float, float], tuple[float, float]]:
    """Tokens and wall seconds, each (low, high)."""
    command = [sys.executable, "-m", "src.train", "--dry-run", f"json={file}", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())["forecast"]
    kinds = [found[kind] for kind in ("prompt", "sampled", "trained")]
    tokens = sum(kind["low"] for kind in kinds), sum(kind["high"] for kind in kinds)
    return tokens, (found["wall_sec"]["low"], found["wall_sec"]["high"])


def train(arguments: Sequence[str], run: RunDirectory) -> tuple[float, float]:
    """Tokens and wall seconds that it took."""
    began = time.monotonic()
    Trainer(run.path.with_suffix(".log"), *arguments).wait()
    wall = time.monotonic() - began
    return read_lines(run.metrics)[-1]["spend/tokens"], wall


def measure(logs: Path, runs: int, steps: int) -> list[tuple[Measured, Measured]]:
    """Tokens and wall time of each run that was planned."""
    logs.mkdir(parents=True, exist_ok=True)
    found = []
    with server() as tx:
        there = len(list(logs.glob("*/config.json")))
        for seed in range(there, there + runs + (not there)):
            run = RunDirectory(logs / f"seed-{seed}")
            arguments = [*SETTINGS, f"skyrl_tx_url={tx.url}", f"logs_dir={logs}", f"max_steps={steps}", f"seed={seed}"]
            planned = plan(arguments, run.path.with_suffix(".json")) if seed else ((0.0, 0.0), (0.0, 0.0))
            tokens, wall = train([*arguments, f"run_name={run.name}"], run)
            print(f"{run.name}: planned {planned}, took {tokens:,.0f} tokens, {wall:.0f} s", flush=True)
            if seed:
                found.append((Measured(planned[0], tokens), Measured(planned[1], wall)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--logs", type=Path, help="where the runs are kept; else in a temporary folder")
    parser.add_argument("--write", action="store_true", help="put the table into docs/budget.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-forecast-") as folder:
        pairs = measure(options.logs or Path(folder), options.runs, options.steps)
    rows = [[str(number), *tokens.cells, *wall.cells] for number, (tokens, wall) in enumerate(pairs, 1)]
    show(f"{options.runs} runs of {options.steps} steps", HEADINGS, rows)
    if options.write:
        replace_part(PAGE, "forecast", markdown(HEADINGS, rows) + f"\n{circumstances('scripts.bench.forecast')}\n")
    return int(not all(measured.inside for pair in pairs for measured in pair))


if __name__ == "__main__":
    sys.exit(main())
