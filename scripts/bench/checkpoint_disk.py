"""A checkpoint at each of many steps: the server's folder and database against what was announced.

    .venv/bin/python -m scripts.bench.checkpoint_disk [--steps 200] [--write]

A real server with a small bound for its database; PolicyTrainer and CheckpointLog as in a run, without Docker trials.
"""

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tinker

from scripts.bench import report
from src.backend.base_model import read_base_model
from src.backend.connect import Backend, connect
from src.backend.disk_note import LOG_MB, SAMPLERS, disk_note, sampler_bytes, state_bytes
from src.backend.policy import PolicyTrainer
from src.cli.training import parse
from src.config import Config
from src.learning.datums import TrainingSequence
from src.recovery import adopt
from src.run.checkpoints import CheckpointLog, Keep, Policy
from tests.integration.small_server import MODEL, Server

KEEP_MB, KEEP_SEC = 8, 30
DATUMS, TOKENS = 16, 256
HEADINGS = ("", "announced", "measured, most")


@dataclass
class Most:
    """Bytes, at most, as seen after each step."""

    folder: int = 0
    database: int = 0
    states: int = 0
    state: int = 0
    sampler: int = 0
    steps: list[float] = field(default_factory=list)  # seconds

    def look(self, server: Server) -> None:
        files = [(path, path.stat().st_size) for path in (server.state / "checkpoints").rglob("*") if path.is_file()]
        samplers = [size for path, size in files if path.parent.name == "sampler_weights"]
        saved = (server.state / "checkpoints").glob("*/*.tar.gz")
        states = [sum(file.stat().st_size for file in one.rglob("*") if file.is_file()) for one in saved]
        self.folder = max(self.folder, sum(size for _, size in files))
        self.states = max(self.states, len(states))
        self.state, self.sampler = max(self.state, *states, 0), max(self.sampler, *samplers, 0)
        self.database = max(self.database, sum(path.stat().st_size for path in server.state.glob("tinker.db*")))


def batch(rng: np.random.Generator) -> list[TrainingSequence]:
    mask = np.arange(TOKENS) >= TOKENS // 2
    logprobs = np.where(mask, -6.0, 0.0).astype(np.float32)
    return [
        TrainingSequence(
            f"t{n}", rng.integers(5, 400, TOKENS).astype(np.int32), mask, logprobs,
            np.where(mask, 1e-3 * (-1) ** n, 0.0).astype(np.float32),
        )
        for n in range(DATUMS)
    ]  # fmt: skip


async def steps(config: Config, backend: Backend, server: Server, folder: Path, n: int) -> Most:
    """Train, publish and save `n` times, looking at the server's disk after each."""
    keep = Keep(config.keep_checkpoints, config.keep_best)
    policy, log = await PolicyTrainer.create(backend, config), CheckpointLog(folder / "checkpoints.jsonl", keep)
    await adopt(policy, log)
    trained, most, rng = Policy(config.model_name, config.lora_rank, "-", "-"), Most(), np.random.default_rng(0)
    adam, began = tinker.AdamParams(learning_rate=1e-4), time.monotonic()
    try:
        for step in range(n + 1):
            if step:
                await policy.update(batch(rng), loss_fn="importance_sampling", loss_fn_config=None, adam=adam)
            await policy.publish(step)
            await log.add(trained.checkpoint(step, await policy.save(step)), policy.delete)
            most.look(server)
            most.steps.append(time.monotonic() - began)
            if step % 20 == 0:
                print(f"step {step}: {most.folder:,} B in the folder, {most.database:,} B of database", flush=True)
    finally:
        await policy.close()
    most.look(server)
    return most


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ht-disk-") as name:
        folder = Path(name)
        server = Server(folder / "server", SKYRL_TX_KEEP_MB=str(KEEP_MB), SKYRL_TX_KEEP_SEC=str(KEEP_SEC))
        server.start()
        try:
            settings = f"backend=skyrl-tx skyrl_tx_url={server.url} model_name={MODEL} tasks_dir=- context_limit=2048"
            config = parse([*settings.split(), "lora_rank=16", "save_every=1"])
            backend = await connect(config)
            note = disk_note(config, given.steps, backend.about)
            print(note)
            most = await steps(config, backend, server, folder, given.steps)
            await backend.close(done=True)
        finally:
            server.stop()
    _show(config, given.steps, most, note, given.write)


def _show(config: Config, n: int, most: Most, note: str, write: bool) -> None:
    model = read_base_model(config.model_name)
    state, sampler = state_bytes(model, config.lora_rank), sampler_bytes(model, config.lora_rank)
    assert state is not None and sampler is not None
    states = Keep(config.keep_checkpoints, config.keep_best).most(n, config.save_every)
    total = states * state + SAMPLERS * sampler
    rows = [
        ["states at once", f"{states}", f"{most.states}"],
        ["a state, KiB", f"{state / 1024:,.0f}", f"{most.state / 1024:,.0f}"],
        ["a sampler, KiB", f"{sampler / 1024:,.0f}", f"{most.sampler / 1024:,.0f}"],
        [
            "checkpoint folder, KiB",
            f"{total / 1024:,.0f}",
            f"{most.folder / 1024:,.0f}",
        ],
        ["database with its log, MiB", f"{KEEP_MB + LOG_MB}", f"{most.database / 2**20:.1f}"],
        ["seconds a step", "", f"{most.steps[-1] / max(1, n):.2f}"],
    ]
    title = f"{n} steps with a checkpoint each"
    report.show(title, HEADINGS, rows)
    if write:
        head = report.circumstances("scripts.bench.checkpoint_disk")
        text = f"{head}\n\n{note}\n\n{report.markdown(HEADINGS, rows)}"
        report.replace_part(report.BENCHMARKS, "checkpoint disk", text)


if __name__ == "__main__":
    asyncio.run(main())
