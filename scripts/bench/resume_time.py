"""How long a run with a long journal takes to start its first new trial after a resume.

    python -m scripts.bench.resume_time [--steps 1250] [--rounds 3] [--write]

A real run of two steps is resumed for a third one, as it is, and after its journal was made to look like that of a run
of `--steps` steps with 8 trials each: ledger, metrics, trajectories, Harbor's folders. Real server, real containers, a
process each; the time is that from the start of the process to the ledger's line of the first new trial.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from scripts.bench import report
from scripts.bench.small_run import N_TRIALS, Trainer, server, start
from src.run.directory import RunDirectory, read_config, write_json
from src.run.jsonl import as_line, read_lines
from src.run.ledger import Ledger

REAL_STEPS = 2
FAULTS = report.ROOT / "docs" / "faults.md"
Record = dict[str, Any]


class Resumed(NamedTuple):
    """Until the first new trial: seconds, CPU seconds of the process, MiB that it had at most."""

    seconds: float
    cpu: float
    peak: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1250)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table into docs/faults.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-resume-") as folder, server() as made:
        real = RunDirectory(Path(folder) / "real")
        start(made, real, REAL_STEPS).wait()
        long = RunDirectory(Path(folder) / "long")
        shutil.copytree(real.path, long.path)
        lengthen(long, arguments.steps)
        times: dict[str, list[Resumed]] = {"real": [], "long": []}
        for number in range(arguments.rounds):
            for run in (real, long):
                copy = RunDirectory(Path(folder) / f"{run.name}-{number}")
                shutil.copytree(run.path, copy.path)
                times[run.name].append(_first_trial(copy))
                shutil.rmtree(copy.path)
        _publish(arguments, times, long)


def lengthen(run: RunDirectory, steps: int) -> None:
    """Make the journal of a finished run that of `steps` steps, out of its own records; its last state stays."""
    ledger, rows = read_lines(run.ledger), read_lines(run.metrics)
    trials = [(r, _end_of(r, ledger)) for r in ledger if r["event"] == "started" and r["trial"].startswith("s000000")]
    trained = next(record for record in ledger if record["event"] == "trained" and record["trials"])
    run.ledger.write_bytes(b"".join(as_line(r, checked=True) for r in _records(trials[:N_TRIALS], trained, steps)))
    run.metrics.write_bytes(b"".join(as_line(rows[-1] | {"global_step": step}) for step in range(steps + 1)))
    state = read_lines(run.checkpoints)[-1]
    run.checkpoints.write_bytes(as_line(state | {"step": steps}))
    write_json(run.config, read_config(run) | {"max_steps": steps, "n_epochs": steps})
    source = run.trajectories("step", 0), run.batch("step", 0)
    for step in range(REAL_STEPS, steps):
        for started, _ in trials[:N_TRIALS]:
            _copy_trial(run, source, started["trial"], step)


def _records(trials: list[tuple[Record, Record]], trained: Record, steps: int) -> Iterator[Record]:
    for step in range(steps):
        for started, ended in trials:
            name = {"trial": _renamed(started["trial"], step)}
            yield from (started | name, ended | name)
        yield trained | {"step": step, "trials": [_renamed(name, step) for name in trained["trials"]]}


def _end_of(started: Record, ledger: list[Record]) -> Record:
    return next(r for r in ledger if r["event"] == "ended" and r["trial"] == started["trial"])


def _renamed(name: str, step: int) -> str:
    return f"s{step:06d}-{name.split('-', 1)[1]}"


def _copy_trial(run: RunDirectory, source: tuple[Path, Path], name: str, step: int) -> None:
    """Its trajectory (under a name that is not its own: reading it would fail) and what `harbor view` reads of it."""
    new = _renamed(name, step)
    trajectories, folder = run.trajectories("step", step), run.batch("step", step) / new
    trajectories.mkdir(exist_ok=True)
    folder.mkdir(parents=True)
    shutil.copyfile(source[0] / f"{name}.npz", trajectories / f"{new}.npz")
    for file in ("config.json", "result.json"):
        shutil.copyfile(source[1] / name / file, folder / file)


def _first_trial(run: RunDirectory) -> Resumed:
    steps = json.loads(run.config.read_text())["max_steps"]
    began, before = time.time(), run.ledger.stat().st_size
    trainer = Trainer(run.path.with_suffix(".log"), f"resume={run.path}", f"max_steps={steps + 1}")
    new = 0.0
    while not trainer.ended and not new:
        time.sleep(0.02)
        new = _new(run, before)
    if not new:
        trainer.wait()
        raise SystemExit(f"no trial was started:\n{trainer.log.read_text()[-4000:]}")
    resumed = Resumed(new - began, trainer.cpu_seconds(), trainer.peak_mib())
    trainer.kill()
    print(run.name, resumed, flush=True)
    return resumed


def _new(run: RunDirectory, before: int) -> float:
    """When the first trial after `before` bytes of the ledger was started; 0 = not yet."""
    with run.ledger.open("rb") as file:
        file.seek(before)
        records = [json.loads(line) for line in file.read().split(b"\n")[:-1]]
    return next((record["time"] for record in records if record["event"] == "started"), 0.0)


def _publish(arguments: argparse.Namespace, times: dict[str, list[Resumed]], long: RunDirectory) -> None:
    began = time.process_time()
    Ledger(long.ledger)
    reading = time.process_time() - began
    real, slow = (Resumed(*(statistics.median(x) for x in zip(*times[name], strict=True))) for name in times)
    lines, size = len(read_lines(long.ledger)), long.ledger.stat().st_size / 2**20
    rows = [
        ["journalled trials; lines and MiB of ledger.jsonl", f"{arguments.steps * N_TRIALS}; {lines}, {size:.1f}"],
        ["process start to the first new trial, imports included", _pair(slow.seconds, real.seconds, "s")],
        ["CPU time of it", _pair(slow.cpu, real.cpu, "s")],
        ["CPU time of it: the ledger read and checked", f"{reading:.2f} s"],
        ["peak memory until then", _pair(slow.peak, real.peak, "MiB")],
    ]
    report.show("resume", ["", ""], rows)
    if arguments.write:
        head = report.circumstances("scripts.bench.resume_time")
        report.replace_part(FAULTS, "resume-time", f"{head}\n\n{report.markdown(['', ''], rows)}")


def _pair(long: float, short: float, unit: str) -> str:
    return f"{long:.1f} {unit}; a run of {REAL_STEPS} steps {short:.1f} {unit}"


if __name__ == "__main__":
    main()
