"""Whole runs of tau:examples/desk on a real server with the policy models/desk: no Docker, nothing patched."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbortrainer.bundled.tau.user import STOP
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Outcome
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.trajectories import read_batch
from tests.conftest import ROOT
from tests.support.chat_server import HANG, ChatServer, Reply, chat_server, says
from tests.support.taxonomy import user_file

MODEL = Path("models/desk")
# Shapes of the quickstart, on both sides: the server has their programs in its cache.
SERVER = {
    **{"MAX_LORA_ADAPTERS": "2", "MAX_LORA_RANK": "8", "GRADIENT_CHECKPOINTING": "false"},
    **{"TRAIN_MICRO_BATCH_SIZE": "24", "SAMPLE_MAX_NUM_SEQUENCES": "24"},
}
SETTINGS = (
    f"backend=skyrl-tx model_name={MODEL} tasks_dir=tau:examples/desk lora_rank=8 max_turns=4 max_tokens=16 "
    "context_limit=512 batch_size=8 num_substeps=2 n_parallel_envs=24 learning_rate=5e-3"
).split()
N_TASKS = 8  # of a batch
N_TRIALS = 48  # of the quickstart's batch
NO_DOCKER = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
AGENTS_FAULTS = {
    Outcome.COMPLETED,
    Outcome.MAX_TURNS,
    Outcome.POLICY_ERROR,
    Outcome.CONTEXT_LENGTH,
}  # graded, perhaps 0
LIMIT_SEC = 1200.0  # of a run, on a busy machine


async def run_desk(url: str, folder: Path, name: str, *more: str, trials: int = N_TRIALS) -> RunDirectory:
    """`python -m src.train` to its end, without a Docker daemon. Fails with its output unless it exits with 0.

    `trials`: of a batch.
    """
    size = f"group_size={trials // N_TASKS}"
    words = [*SETTINGS, size, f"skyrl_tx_url={url}", f"logs_dir={folder}", f"run_name={name}", *more]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "src.train", *words, cwd=ROOT, env=os.environ | NO_DOCKER,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT_SEC)
    except BaseException:
        process.kill()
        raise
    assert process.returncode == 0, output.decode()
    return RunDirectory(folder / name)


@dataclass(frozen=True, slots=True)
class Outage:
    """Of a batch whose user's endpoint went away. `zeros`: rewards of 0 of trials that did not end by the agent."""

    seconds: float
    trials: int
    graded: int
    zeros: int
    trained: int


async def run_with_outage(url: str, folder: Path, seconds: float = 0.0, trials: int = N_TRIALS) -> Outage:
    """One step. In its middle the endpoint that plays the user refuses connections: until the run has noticed it, and
    for `seconds` at least.
    """
    left = asyncio.Event()

    def answer(body: dict[str, Any]) -> Reply:
        return customer(body) if left.is_set() or len(server.requests) <= trials // 2 else HANG

    async with chat_server(answer) as server:
        user = [f"user={user_file(url=server.url, model='customer')}"]
        run = RunDirectory(folder / "outage")
        running = asyncio.create_task(run_desk(url, folder, run.name, *user, "max_steps=1", trials=trials))
        away = asyncio.create_task(_go_away(server, run, seconds, left, trials // 2))
        await asyncio.wait([running, away], return_when=asyncio.FIRST_EXCEPTION)
        await running
        lasted = await away
    batch = read_batch(run.path / "trajectories" / "step_000000")
    return Outage(
        lasted,
        len(batch),
        sum(trial.reward is not None for trial in batch.values()),
        sum(trial.reward == 0.0 and trial.outcome not in AGENTS_FAULTS for trial in batch.values()),
        sum(record["event"] == "trained" for record in read_lines(run.ledger)),
    )


def customer(body: dict[str, Any]) -> Reply:
    """Says the scenario, and stops when it is answered."""
    system, *talk = body["messages"]
    scenario = str(system["content"]).partition("<scenario>\n")[2].partition("\n</scenario>")[0]
    return says((scenario or "Yes.") if len(talk) == 1 else STOP)  # the check has no scenario


async def _go_away(server: ChatServer, run: RunDirectory, seconds: float, left: asyncio.Event, asked: int) -> float:
    """The seconds for which it was away, once more than `asked` requests have come: from then on it is silent until it
    leaves, so that the run misses an answer.
    """
    await _until(lambda: len(server.requests) > asked)
    await server.stop()
    left.set()
    began = time.monotonic()
    await _until(lambda: "does not answer" in (run.path / "run.log").read_text())
    await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))
    await server.start()
    return time.monotonic() - began


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_SEC):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
