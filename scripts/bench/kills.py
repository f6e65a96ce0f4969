"""kill -9 of the trainer at random instants of small runs, resumed each time; then the journal is audited.

    python -m scripts.bench.kills [--kills 30] [--steps 12] [--longest-life 30] [--seed 0] [--write]

A real server, real containers, the quickstart's policy and tasks. Two unbroken runs with the same seeds come first:
how far they are apart is the noise. Kills come, in turns, a random time after the start of a process, a random time
after it has gone on (its first line in the ledger), and a random time after the beginning of a phase, each in its turn.
"""

import argparse
import itertools
import os
import random
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from scripts.bench import report
from scripts.bench.journal import Audit, audit, phase
from scripts.bench.small_run import N_TRIALS, SAVE_EVERY, Server, Trainer, server, start
from src.rollout.docker import owner
from src.rollout.docker.engine import engine
from src.run.directory import RunDirectory, run_ids
from src.run.jsonl import read_lines

FAULTS = report.ROOT / "docs" / "faults.md"
LONGEST_WAIT_SEC = 90.0  # for a phase
# phase -> seconds after its beginning, at most
AIMED = {"update": 0.5, "evaluation": 2.0, "publishing, logging": 0.1, "sampling": 3.0, "saving": 0.3, "restoring": 0.5}


@dataclass
class Kills:
    """What happened to the runs that were killed."""

    phases: Counter[str] = field(default_factory=Counter)
    orphans: int = 0  # containers that were there right after the kills
    lives: list[float] = field(default_factory=list)  # seconds


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="bench-kills-") as folder, server() as made:
        _measure(arguments, made, Path(folder))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--steps", type=int, default=12, help="of each run")
    parser.add_argument("--longest-life", type=float, default=30.0, help="seconds, of a process killed at random")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/faults.md")
    return parser.parse_args()


def _measure(arguments: argparse.Namespace, made: Server, folder: Path) -> None:
    whole = [RunDirectory(folder / name) for name in ("unbroken-1", "unbroken-2")]
    for trainer in [start(made, run, arguments.steps) for run in whole]:
        trainer.wait()
    print("\n".join(f"{run.name}: {audit(run, arguments.steps)}" for run in whole), flush=True)
    chance, kills, killed = random.Random(arguments.seed), Kills(), []
    for number in itertools.count(1):
        run = RunDirectory(folder / f"killed-{number}")
        killed.append(run)
        _kill_and_finish(arguments, made, run, kills, chance)
        if kills.phases.total() >= arguments.kills:
            break
    audits = [audit(run, arguments.steps) for run in killed]
    adam = [made.adam_steps(read_lines(run.checkpoints)[-1]["path"]) for run in killed]
    left = sum(len(_containers(run)) for run in (*whole, *killed))
    _publish(arguments, kills, audits, adam, left)
    _publish_curves(arguments, whole, killed[0])


def _kill_and_finish(
    arguments: argparse.Namespace, made: Server, run: RunDirectory, kills: Kills, chance: random.Random
) -> None:
    """Kill and resume until there were kills enough, then let the run end; it may end before."""
    while True:
        since = run.ledger.stat().st_size if run.ledger.exists() else 0
        trainer = start(made, run, arguments.steps)
        if kills.phases.total() >= arguments.kills:
            trainer.wait()
            return
        began = time.monotonic()
        _await_instant(trainer, run, since, kills.phases.total(), chance, arguments.longest_life)
        if trainer.ended:
            trainer.wait()
            return
        trainer.kill()
        kills.lives.append(time.monotonic() - began)
        kills.phases[phase(run, since, SAVE_EVERY, N_TRIALS)] += 1
        kills.orphans += len(_containers(run))
        done = f"{run.name}: kill {kills.phases.total()} after {kills.lives[-1]:.1f} s"
        print(f"{done}, {kills.orphans} containers left so far; {dict(kills.phases)}", flush=True)


def _await_instant(
    trainer: Trainer, run: RunDirectory, since: int, number: int, chance: random.Random, longest_life: float
) -> None:
    """Returns at the instant, or when the trainer has ended."""
    kind, turn = number % 3, number // 3
    deadline = time.monotonic() + LONGEST_WAIT_SEC
    if kind == 0:
        _sleep(trainer, chance.uniform(0.0, longest_life))
        return
    aim, longest = list(AIMED.items())[turn % len(AIMED)] if kind == 2 else ("", longest_life)
    seen = -1
    while not trainer.ended and time.monotonic() < deadline:
        size = sum(path.stat().st_size for path in (run.ledger, run.metrics, run.checkpoints) if path.exists())
        now = phase(run, since, SAVE_EVERY, N_TRIALS) if size != seen else "start-up"
        if now == aim or (not aim and now != "start-up"):
            break
        seen = size
        time.sleep(0.01)
    _sleep(trainer, chance.uniform(0.0, longest))


def _sleep(trainer: Trainer, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not trainer.ended and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.5))


def _containers(run: RunDirectory) -> list[str]:
    if not run.ids.exists():
        return []
    found = engine().containers(all=True, filters={"label": f"{owner.RUN_ID}={run_ids(run).run_id}"})
    return [container["Id"] for container in found]


def _publish(arguments: argparse.Namespace, kills: Kills, audits: list[Audit], adam: list[int], left: int) -> None:
    total = {name: sum(asdict(one)[name] for one in audits) for name in asdict(audits[0])}
    lives = f"{min(kills.lives):.1f}, {max(kills.lives):.1f}"
    rows = [
        ["runs, steps, trials", f"{len(audits)}, {total['steps']}, {total['trials']}"],
        ["kills; seconds lived, shortest and longest", f"{kills.phases.total()}; {lives}"],
        ["killed during", ", ".join(f"{name} {count}" for name, count in kills.phases.most_common())],
        ["finished trials run again", str(total["repeated"])],
        ["started trials without exactly one outcome", str(total["unsettled"])],
        ["steps skipped or doubled", str(total["skipped_or_doubled"])],
        ["optimizer steps in the journal; in the last state's Adam", f"{total['optimizer_steps']}; {sum(adam)}"],
        ["steps made again after a restored state; with other datums", f"{total['made_again']}; {total['differing']}"],
        ["steps whose digest is not that of the trials on disk", str(total["not_of_its_trials"])],
        ["rows of metrics.jsonl missing or doubled", str(total["rows_wrong"])],
        ["containers right after the kills; at the end", f"{kills.orphans}; {left}"],
    ]
    _write(arguments, "kills", ["", ""], rows)


def _publish_curves(arguments: argparse.Namespace, whole: list[RunDirectory], killed: RunDirectory) -> None:
    """Mean absolute difference a step, between the unbroken runs and between the first of them and the killed one."""
    first, second, broken = (read_lines(run.metrics) for run in (*whole, killed))
    rows = []
    for name in ("reward/mean", "optim/grad_norm", "server/loss_sum", "eval/reward_mean"):
        noise, distance = (_distance(name, first, other) for other in (second, broken))
        rows.append([name, f"{noise:.4f}", f"{distance:.4f}"])
    _write(arguments, "kills-curves", ["mean difference a step", "two unbroken runs", "unbroken and killed"], rows)


def _distance(name: str, one: list[dict[str, float]], other: list[dict[str, float]]) -> float:
    pairs = [(a[name], b[name]) for a, b in zip(one, other, strict=True) if name in a and name in b]
    return sum(abs(a - b) for a, b in pairs) / max(len(pairs), 1)


def _write(arguments: argparse.Namespace, name: str, headings: list[str], rows: list[list[str]]) -> None:
    report.show(name, headings, rows)
    if arguments.write:
        text = f"{report.circumstances('scripts.bench.kills')}\n\n{report.markdown(headings, rows)}"
        report.replace_part(FAULTS, name, text)


if __name__ == "__main__":
    main()
