"""init_from against the real server: the weights and moments of another run, exact after kill -9 and a resume."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from harbortrainer.durable.jsonl import read_lines
from tests.conftest import ROOT
from tests.support.served_run import arguments, served_run, weights


def served(words: list[str]) -> Path:
    return asyncio.run(served_run(words))


def logprobs(url: str, path: str) -> np.ndarray:
    return asyncio.run(weights(url, path))


def checkpoint(run: Path, step: int) -> str:
    return next(record["path"] for record in read_lines(run / "checkpoints.jsonl") if record["step"] == step)


@pytest.fixture(scope="module")
def source(server_url: str, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    return served(arguments(server_url, tmp_path_factory.mktemp("runs"), "source", "max_steps=1"))


@pytest.fixture(scope="module")
def unbroken(server_url: str, source: Path) -> Path:
    """A run of one step from there, with its moments."""
    words = arguments(
        server_url, source.parent, "unbroken", "max_steps=1", f"init_from={source}", "init_optimizer=true"
    )
    return served(words)


def test_a_run_starts_with_the_weights_and_moments_of_another(server_url: str, source: Path, unbroken: Path):
    trained, started = checkpoint(source, 1), checkpoint(unbroken, 0)
    assert trained != started, "a copy of its own, which the source cannot delete"
    same = logprobs(server_url, trained)
    assert logprobs(server_url, started) == pytest.approx(same, abs=1e-5)
    assert np.abs(logprobs(server_url, checkpoint(source, 0)) - same).max() > 1e-3, "the source has learned"
    (row,) = (row for row in read_lines(unbroken / "metrics.jsonl") if row["global_step"] == 1)
    assert row["optim/server_step"] == 2, "Adam counts on"


def test_without_its_moments_adam_counts_from_zero(server_url: str, source: Path):
    run = served(arguments(server_url, source.parent, "fresh", "max_steps=1", f"init_from={source}@1"))
    assert logprobs(server_url, checkpoint(run, 0)) == pytest.approx(
        logprobs(server_url, checkpoint(source, 1)), abs=1e-5
    )
    assert read_lines(run / "metrics.jsonl")[-1]["optim/server_step"] == 1


def test_killed_after_init_and_resumed_it_ends_with_the_same_weights(server_url: str, source: Path, unbroken: Path):
    words = ("max_steps=1", f"init_from={source}", "init_optimizer=true")
    command = [
        sys.executable,
        "-m",
        "tests.support.served_run",
        *arguments(server_url, source.parent, "killed", *words),
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    run = source.parent / "killed"
    deadline = time.monotonic() + 120
    while not read_lines(run / "checkpoints.jsonl"):
        assert process.poll() is None and time.monotonic() < deadline, process.stdout and process.stdout.read()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [record["step"] for record in read_lines(run / "checkpoints.jsonl")] == [0], "killed before it trained"
    served([f"resume={run}", f"logs_dir={source.parent}", "run_name=killed"])
    expected = logprobs(server_url, checkpoint(unbroken, 1))
    assert logprobs(server_url, checkpoint(run, 1)) == pytest.approx(expected, abs=1e-5)
    graded = [r["trial"] for r in read_lines(run / "ledger.jsonl") if r.get("fate") == "graded"]
    assert len(graded) == len(set(graded)) == 8, "no finished trial was run again"
    assert read_lines(run / "metrics.jsonl")[-1]["optim/server_step"] == 2
