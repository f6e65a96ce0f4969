"""kill -9 and restart of the training server in each phase of a run, with its database kept or lost.

    .venv/bin/python -m bench.server_kills [--only PHASE] [--lost] [--write]

Each row is a whole `python -m src.train` over real Docker trials. Exact: every row of the metrics says that the
server's weights have had as many optimizer steps as the run has made, and that the trainer's logprobs of each batch
are those with which it was sampled: weights restored, or made again from the trials on disk, are the same weights.
"""

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.train import parse
from harbortrainer.training.outside import Outside
from tests.support.proxy import Rule, proxy_to
from tests.support.small_server import MODEL, Server

STEPS, SUBSTEPS = 3, 2
LIMIT_SEC = 900
SMALL = (
    f"lora_rank=8 batch_size=2 group_size=4 n_parallel_envs=4 max_turns=2 max_tokens=40 context_limit=2048 "
    f"learning_rate=3e-3 save_every=1 keep_checkpoints=2 max_steps={STEPS} num_substeps={SUBSTEPS} "
    "tasks_dir=datasets/quickstart backend=skyrl-tx"
).split()
SAME_LOGPROBS = 1e-3


@dataclass(frozen=True)
class Phase:
    """Killed when the server is passed the `nth` request of `path` (0 = first), `after_sec` later."""

    name: str
    path: str
    nth: int
    after_sec: float = 0.05


PHASES = (
    Phase("sampling", "asample", 12),
    Phase("forward_backward", "forward_backward", SUBSTEPS),
    Phase("optim_step", "optim_step", SUBSTEPS, 0.3),
    Phase("saving", "save_weights", 1),
    Phase("publishing", "save_weights_for_sampler", 1),
)
HEADINGS = ("phase", "database", "killed at", "ended by itself", "steps exact", "logprobs differ by", "seconds")


async def measure(phase: Phase, lost: bool, folder: Path) -> list[str]:
    """One run whose server is killed once: a row of the table."""
    server, killed = Server(folder / "server"), asyncio.Event()
    await asyncio.to_thread(server.start)
    loop = asyncio.get_running_loop()
    rule = Rule(phase.path, nth=phase.nth, seen=lambda: loop.call_later(phase.after_sec, killed.set) and None)
    try:
        await (await Outside().connect(parse(arguments(server.url, folder)))).close(
            done=True
        )  # measured, once for all runs
        async with proxy_to(server.url, rule) as proxy:
            restart = asyncio.create_task(_restart(server, killed, lost))
            began = time.monotonic()
            output, status = await run_to_end(arguments(proxy.url, folder))
            seconds = time.monotonic() - began
            restart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await restart
    finally:
        await asyncio.to_thread(server.stop)
    rows = read_lines(folder / "runs" / "run" / "metrics.jsonl")
    problems = wrong(rows, output)
    at = f"{phase.path} {phase.nth + 1}" if killed.is_set() else "never"
    ended = "yes" if status == 0 else f"no ({status})"
    if problems or status:
        print(output[-3000:])
    differ = max((row.get("logprobs/max_abs_difference", 0.0) for row in rows), default=float("nan"))
    exact = "; ".join(problems) or "yes"
    return [phase.name, "lost" if lost else "kept", at, ended, exact, f"{differ:.1e}", f"{seconds:.0f}"]


def wrong(rows: list[dict[str, Any]], output: str) -> list[str]:
    """What is not exact about a run's metrics."""
    problems = []
    if [row["global_step"] for row in rows if row["global_step"]] != list(range(1, STEPS + 1)):
        problems.append(f"rows of steps {[row['global_step'] for row in rows]}")
    taken = 0
    for row in rows:
        taken += int(row.get("optim/steps", 0))
        if taken and row.get("optim/steps") and row["optim/server_step"] != taken:
            problems.append(f"step {row['global_step']}: the server counts {row['optim/server_step']:g}, not {taken}")
        if row.get("logprobs/max_abs_difference", 0.0) > SAME_LOGPROBS:
            problems.append(f"step {row['global_step']}: other weights than were sampled")
    if not re.search(r"restored (tinker://|the adapter)", output):
        problems.append("nothing was restored")
    return problems


def arguments(url: str, folder: Path) -> list[str]:
    return [*SMALL, f"model_name={MODEL}", f"skyrl_tx_url={url}", f"logs_dir={folder}/runs", "run_name=run"]


async def run_to_end(arguments: list[str], limit_sec: float = LIMIT_SEC) -> tuple[str, int]:
    """Output and exit status of a training run."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "src.train", *arguments, cwd=report.ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), limit_sec)
    except TimeoutError:
        process.kill()
        output, _ = await process.communicate()
    return output.decode(), process.returncode or 0


async def _restart(server: Server, killed: asyncio.Event, lost: bool) -> None:
    await killed.wait()
    server.kill()
    if lost:
        server.forget()
    await asyncio.to_thread(server.start)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=[phase.name for phase in PHASES], help="one phase")
    parser.add_argument("--lost", action="store_true", help="the database is lost too; otherwise it is kept")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    given = parser.parse_args()
    rows = []
    for phase in PHASES:
        if given.only in (None, phase.name):
            with tempfile.TemporaryDirectory(prefix="ht-kills-") as folder:
                rows.append(await measure(phase, given.lost, Path(folder)))
            print(dict(zip(HEADINGS, rows[-1], strict=True)), flush=True)
    title = f"server killed, database {'lost' if given.lost else 'kept'}"
    document = report.RESULTS if given.write else None
    wrong = [row[0] for row in rows if row[3:5] != ["yes", "yes"]]
    report.publish("bench.server_kills", title, HEADINGS, rows, document, wrong=wrong)


if __name__ == "__main__":
    asyncio.run(main())
