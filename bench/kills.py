"""kill -9 of the trainer at random instants of small runs, resumed each time; then the journal is audited.

    python -m bench.kills [--kills 30] [--steps 12] [--longest-life 30] [--most-stale 0] [--mixed] [--seed 0]
        [--settings observation_loss_coef=0.05,loss_fn=dppo] [--write]

A real server, real containers, the quickstart's policy and tasks. Kills come, in turns, a random time after the
start of a process, a random time after its first line in the ledger, and a random time after a phase began.
--mixed: the tasks are the quickstart's and those of tau:examples/desk, in one order.
"""

import argparse
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from bench import report
from bench.journal import Audit, audit, phase
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.keeping import ownership
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.directory import RunDirectory, run_ids
from tests.support.small_server import MODEL, Server

SAVE_EVERY = 2
N_TRIALS = 8  # of a training batch
SETTINGS = (
    f"backend=skyrl-tx model_name={MODEL} lora_rank=8 batch_size=2 group_size=4 n_parallel_envs=4 "
    "max_tokens=40 learning_rate=3e-3 lr_schedule=linear allow_family_overlap=true eval_group_size=2 eval_every=3 "
    f"save_every={SAVE_EVERY} keep_checkpoints=2"
).split()
TERMINAL = "tasks_dir=datasets/quickstart eval_tasks=create-6,copy-6 max_turns=4 context_limit=2048"
MIXED = (
    "tasks_dir=tau:examples/desk,datasets/quickstart task_weights.desk=1 task_weights.quickstart=1 tool_format=hermes "
    "eval_tasks=desk-cancel-17,copy-6 max_turns=2 context_limit=2304"
)
LONGEST_WAIT_SEC = 90.0  # for a phase
AUDITED = (
    "repeated",
    "unsettled",
    "skipped_or_doubled",
    "differing",
    "not_of_its_trials",
    "too_old",
    "rows_wrong",
)  # 0
# phase -> seconds after its beginning, at most
AIMED = {"update": 0.5, "evaluation": 2.0, "publishing, logging": 0.1, "sampling": 3.0, "saving": 0.3, "restoring": 0.5}


@dataclass
class Kills:
    """What happened to the runs that were killed."""

    phases: Counter[str] = field(default_factory=Counter)
    orphans: int = 0  # containers that were there right after the kills
    lives: list[float] = field(default_factory=list)  # seconds


class Trainer:
    """One process of `python -m src.train`; its output goes to `log`."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "src.train", *arguments], cwd=report.ROOT, stdout=file, stderr=file,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def wait(self) -> None:
        """To its end. Raises SystemExit with the log unless it did well."""
        try:
            status = self._process.wait()
        except BaseException:
            self.kill()
            raise
        if status != 0:
            raise SystemExit(f"the trainer ended with {status}:\n{self.log.read_text()[-4000:]}")


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
    parser.add_argument("--settings", default="", help="more settings of the runs, with commas between")
    parser.add_argument("--most-stale", type=int, default=0, help="max_steps_off_policy of the runs")
    parser.add_argument("--mixed", action="store_true", help="terminal tasks and conversations in each batch")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    return parser.parse_args()


def _measure(arguments: argparse.Namespace, made: Server, folder: Path) -> None:
    chance, kills, killed = random.Random(arguments.seed), Kills(), []
    for number in itertools.count(1):
        run = RunDirectory(folder / f"killed-{number}")
        killed.append(run)
        _kill_and_finish(arguments, made, run, kills, chance)
        if kills.phases.total() >= arguments.kills:
            break
    audits = [audit(run, arguments.steps) for run in killed]
    adam = [adam_steps(made, read_lines(run.checkpoints)[-1]["path"]) for run in killed]
    left = sum(len(_containers(run)) for run in killed)
    _publish(arguments, kills, audits, adam, left, sum(map(_both_kinds, killed)))


def _kill_and_finish(
    arguments: argparse.Namespace, made: Server, run: RunDirectory, kills: Kills, chance: random.Random
) -> None:
    """Kill and resume until there were kills enough, then let the run end; it may end before."""
    while True:
        since = run.ledger.stat().st_size if run.ledger.exists() else 0
        trainer = start(made, run, arguments)
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
    found = engine().containers(all=True, filters={"label": f"{ownership.RUN_ID}={run_ids(run).run_id}"})
    return [container["Id"] for container in found]


def _both_kinds(run: RunDirectory) -> int:
    """Steps whose batch had a terminal task and a conversation."""
    counts = [f"group/count/source/{name}" for name in ("desk", "quickstart")]
    return sum(all(row.get(count) for count in counts) for row in read_lines(run.metrics))


def _publish(
    arguments: argparse.Namespace, kills: Kills, audits: list[Audit], adam: list[int], left: int, both: int
) -> None:
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
        ["turns older than max_steps_off_policy allows", str(total["too_old"])],
        ["rows of metrics.jsonl missing or doubled", str(total["rows_wrong"])],
        ["containers right after the kills; at the end", f"{kills.orphans}; {left}"],
    ]
    if arguments.mixed:
        rows.insert(1, ["steps whose batch has terminal tasks and conversations", str(both)])
    document = report.RESULTS if arguments.write else None
    wrong = [name for name in AUDITED if total[name]] + ["containers left"] * bool(left)
    wrong += ["no batch of both kinds"] * (arguments.mixed and both == 0)  # an epoch takes the tasks in random order
    wrong += ["optimizer steps"] * (total["optimizer_steps"] != sum(adam))
    name = "kills" + "-mixed" * arguments.mixed + f"-{arguments.most_stale}" * bool(arguments.most_stale)
    report.publish("bench.kills", name, ("", ""), rows, document, wrong=wrong)


@contextmanager
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="bench-server-") as state:
        made = Server(Path(state), MAX_LORA_ADAPTERS="8", MAX_LORA_RANK="16", SESSION_TIMEOUT="30")
        made.start()
        try:
            yield made
        finally:
            made.stop()


def adam_steps(server: Server, checkpoint: str) -> int:
    """Optimizer steps of a saved state, tinker://MODEL_ID/weights/NAME."""
    match = re.fullmatch(r"tinker://(.+)/weights/(.+)", checkpoint)
    assert match is not None
    folder = server.state / "checkpoints" / match.group(1) / f"{match.group(2)}.tar.gz"
    command = ["server/.venv/bin/python", "bench/adam_steps.py", str(folder)]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=report.ROOT, env=env, capture_output=True, text=True, check=True)
    return int(done.stdout)


def start(server: Server, run: RunDirectory, arguments: argparse.Namespace) -> Trainer:
    """A new run, or the one in that folder resumed. Its log is beside the folder."""
    log = run.path.with_suffix(".log")
    if run.config.exists():
        return Trainer(log, f"resume={run.path}")
    names = [f"logs_dir={run.path.parent}", f"run_name={run.name}", f"max_steps={arguments.steps}"]
    names.append(f"max_steps_off_policy={arguments.most_stale}")
    of_tasks = MIXED if arguments.mixed else TERMINAL
    names += filter(None, arguments.settings.split(","))
    return Trainer(log, *SETTINGS, *of_tasks.split(), f"skyrl_tx_url={server.url}", *names)


if __name__ == "__main__":
    main()
