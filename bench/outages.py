"""The server frozen, or killed and started again, twice at random in a run: what becomes of its trials.

    .venv/bin/python -m bench.outages [--seeds 3] [--first 0] [--kill] [--any] [--steps 12] [--least 60] [--most 240]

Each row is a whole `python -m src.train` over real Docker trials with trial_timeout_sec=120; without an outage they
take some seconds. The second outage begins 1 to 12 s after the first one and meets what that has delayed.
Wrong: a trial that ends `agent_timeout`, a task that is left out, a place that stays empty, a run that ends early.
"""

import argparse
import asyncio
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench import report
from bench.server_kills import run_to_end
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.treatment import AFTER_OUTAGE
from tests.support.small_server import MODEL, Server, send

SMALL = (
    f"model_name={MODEL} lora_rank=8 batch_size=2 group_size=4 n_parallel_envs=8 max_turns=6 "
    "max_tokens=40 context_limit=4096 learning_rate=1e-3 save_every=1 keep_checkpoints=2 tasks_dir=datasets/quickstart "
    "backend=skyrl-tx trial_timeout_sec=120"
).split()
LIMIT_SEC = 3600.0
OUTAGES = 2
STEP_SEC = 4.0  # that a step takes, about
AWAY_SEC = 30.0  # a trial that took longer has waited for an absent server
HEADINGS = (
    "seed", "silent, s of the run", "status; steps", "trials; graded", "graded that waited", "agent_timeout",
    "replaced after an outage; otherwise", "cancelled; dropped", "tasks left out", "seconds",
)  # fmt: skip


async def measure(seed: int, given: argparse.Namespace, folder: Path) -> list[str]:
    """One run with two outages: a row of the table."""
    server, silent = Server(folder / "server"), list[tuple[float, float]]()
    await asyncio.to_thread(server.start)
    began = time.monotonic()
    arguments = [*SMALL, f"max_steps={given.steps}", f"seed={seed}"]
    arguments += [f"skyrl_tx_url={server.url}", f"logs_dir={folder}/runs", "run_name=run"]
    outages = asyncio.create_task(_outages(seed, given, server, folder / "runs" / "run" / "metrics.jsonl", silent))
    try:
        output, status = await run_to_end(arguments, LIMIT_SEC)
    finally:
        outages.cancel()
        await asyncio.wait({outages})
        await asyncio.to_thread(server.stop)
    print(output)
    assert len(silent) == OUTAGES, "the run was over before"
    spans = ", ".join(f"{first - began:.0f} to {last - began:.0f}" for first, last in silent)
    return [str(seed), spans, *_counted(folder / "runs" / "run", status), f"{time.monotonic() - began:.0f}"]


def _counted(run: Path, status: int) -> list[str]:
    ended = [line for line in read_lines(run / "ledger.jsonl") if line["event"] == "ended"]
    fates = Counter(line["fate"].split()[0] for line in ended)
    free = sum(line["fate"].endswith(AFTER_OUTAGE) for line in ended)
    waited = [line for line in ended if line["fate"] == "graded" and line["seconds"] > AWAY_SEC]
    late = [line for line in ended if line["outcome"] == "agent_timeout"]
    left_out = {line["task"] for line in ended if line["fate"] == "quarantined"}
    return [
        f"{status}; {sum(row['global_step'] > 0 for row in read_lines(run / 'metrics.jsonl'))}",
        f"{len(ended)}; {fates['graded']}",
        str(len(waited)),
        str(len(late)),
        f"{free}; {fates['replaced'] - free}",
        f"{fates['cancelled']}; {fates['dropped']}",
        str(len(left_out)),
    ]


async def _outages(
    seed: int, given: argparse.Namespace, server: Server, metrics: Path, silent: list[tuple[float, float]]
) -> None:
    chance = random.Random(seed)
    step = chance.randint(1, given.steps // 2)
    while not metrics.exists() or len(metrics.read_text().splitlines()) < step:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    for pause in (chance.uniform(0, STEP_SEC), chance.uniform(1, 3 * STEP_SEC)):
        await asyncio.sleep(pause)
        while not given.any and not _trials_run(metrics.with_name("ledger.jsonl")):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        began, seconds = time.monotonic(), chance.uniform(given.least, given.most)
        await (_killed if given.kill else _frozen)(server, seconds)
        silent.append((began, time.monotonic()))


def _trials_run(ledger: Path) -> bool:
    events = Counter(line["event"] for line in read_lines(ledger))
    return events["started"] > events["ended"]


async def _frozen(server: Server, seconds: float) -> None:
    await asyncio.to_thread(send, server.url, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        send(server.url, signal.SIGCONT)


async def _killed(server: Server, seconds: float) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.start)


def _wrong(row: list[str], steps: int) -> bool:
    status, late, places, left_out = row[2], row[5], row[7], row[8]
    return (status, late, places.split("; ")[1], left_out) != (f"0; {steps}", "0", "0", "0")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="runs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--kill", action="store_true", help="killed and started again; otherwise frozen")
    parser.add_argument("--any", action="store_true", help="at any moment of a step; otherwise while trials run")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--least", type=float, default=60.0, help="seconds of an outage")
    parser.add_argument("--most", type=float, default=240.0)
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    given, rows = parser.parse_args(), []
    for seed in range(given.first, given.first + given.seeds):
        with tempfile.TemporaryDirectory(prefix="ht-outages-") as folder:
            rows.append(await measure(seed, given, Path(folder)))
        print(dict(zip(HEADINGS, rows[-1], strict=True)), flush=True)
    name = f"outages-{'killed' if given.kill else 'frozen'}"
    bad = [f"seed {row[0]}" for row in rows if _wrong(row, given.steps)]
    report.publish("bench.outages", name, HEADINGS, rows, report.RESULTS if given.write else None, wrong=bad)


if __name__ == "__main__":
    asyncio.run(main())
