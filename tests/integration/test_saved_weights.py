"""Saved weights on the real server: as a run's start, exact after kill -9 and a resume; as reference and teacher."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import BackendError
from tests.conftest import MODEL, ROOT
from tests.support.engine_parts import every_slot
from tests.support.served_run import HANGS, arguments, served_run, weights
from tests.support.small_server import checkpoints_base


def served(words: list[str]) -> Path:
    return asyncio.run(served_run(words))


def logprobs(url: str, path: str) -> np.ndarray:
    return asyncio.run(weights(url, path))


def checkpoint(run: Path, step: int) -> str:
    return next(record["path"] for record in read_lines(run / "checkpoints.jsonl") if record["step"] == step)


@pytest.fixture(scope="module")
def unbroken(server_url: str, source: Path) -> Path:
    """A run of one step from there."""
    return served(arguments(server_url, source.parent, "unbroken", "max_steps=1", f"init_from={source}"))


def test_a_run_starts_with_the_weights_of_another(server_url: str, source: Path, unbroken: Path):
    trained, started = checkpoint(source, 1), checkpoint(unbroken, 0)
    assert trained != started, "a copy of its own, which the source cannot delete"
    same = logprobs(server_url, trained)
    assert logprobs(server_url, started) == pytest.approx(same, abs=1e-5)
    assert np.abs(logprobs(server_url, checkpoint(source, 0)) - same).max() > 1e-3, "the source has learned"
    (row,) = (row for row in read_lines(unbroken / "metrics.jsonl") if row["global_step"] == 1)
    assert row["optim/server_step"] == 1, "Adam starts afresh"
    assert main(["replay", str(unbroken)]) == 0, "not the datums that were sent"


@pytest.mark.nightly
def test_killed_after_init_and_resumed_it_ends_with_the_same_weights(server_url: str, source: Path, unbroken: Path):
    words = ("max_steps=1", f"init_from={source}")
    command = [
        sys.executable,
        "-m",
        "tests.support.served_run",
        *arguments(server_url, source.parent, "killed", *words),
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {HANGS: "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    run = source.parent / "killed"
    deadline = time.monotonic() + 1800
    while not read_lines(run / "checkpoints.jsonl"):
        assert process.poll() is None and time.monotonic() < deadline, process.stdout and process.stdout.read()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [record["step"] for record in read_lines(run / "checkpoints.jsonl")] == [0], "killed before it trained"
    served([f"resume={run}", f"logs_dir={source.parent}", "run_name=killed"])
    start, expected = (logprobs(server_url, checkpoint(unbroken, step)) for step in (0, 1))
    found = logprobs(server_url, checkpoint(run, 1))
    # Adam's first step is as long where a gradient is nearly 0, whose sign hangs on the program that computed it
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected - start).max()
    graded = [r["trial"] for r in read_lines(run / "ledger.jsonl") if r.get("fate") == "graded"]
    assert len(graded) == len(set(graded)) == 8, "no finished trial was run again"
    assert read_lines(run / "metrics.jsonl")[-1]["optim/server_step"] == 1, "Adam starts afresh"
    assert read_lines(run / "metrics.jsonl")[-1]["kl/start"] == pytest.approx(0, abs=1e-3)
    assert samplers(server_url) == [], "the resumed process knew the sampler that the killed one had saved"


def samplers(url: str) -> list[Path]:
    """Samplers of references on the server's disk."""
    return [*checkpoints_base(url).rglob("reference*")]


@pytest.mark.nightly
def test_a_penalty_against_the_start_begins_at_0_and_follows_the_policy(server_url: str, source: Path):
    settings = ("max_steps=2", f"init_from={source}", "learning_rate=1e-2")
    penalty = ("kl_penalty_coef=0.01", "kl_reference=start")
    run = served(arguments(server_url, source.parent, "held", *settings, *penalty))
    before, after = (row["kl/start"] for row in read_lines(run / "metrics.jsonl"))
    assert before == pytest.approx(0, abs=1e-3) and after > 0.01
    assert read_lines(run / "references.jsonl") == [] == samplers(server_url)


@pytest.mark.nightly
def test_a_fresh_adapter_learns_a_teacher_without_rewards(server_url: str, source: Path):
    """The teacher is a run of one more, larger step, far from the base model."""
    far = ("max_steps=1", f"init_from={source}", "learning_rate=1e-2")
    teacher = served(arguments(server_url, source.parent, "teacher", *far))
    size = ("batch_size=4", "group_size=8", "n_epochs=4")
    distil = ("advantage=none", "kl_penalty_coef=1", f"kl_reference={teacher}")
    student = served(arguments(server_url, source.parent, "student", *size, *distil))
    rows = read_lines(student / "metrics.jsonl")
    distance = [row["kl/reference"] for row in rows]
    assert distance[0] > 0.1 and max(distance[-2:]) < distance[0] / 2, distance
    assert rows[0]["kl/start"] == pytest.approx(0, abs=1e-3) and rows[-1]["kl/start"] > 0.01
    assert main(["replay", str(student)]) == 0, "not the datums that were sent"


@pytest.mark.nightly
def test_without_a_free_slot_a_teacher_is_refused_before_the_first_trial(server_url: str, source: Path):
    async def refused() -> str:
        async with every_slot(server_url, MODEL):
            with pytest.raises(BackendError) as refusal:
                await served_run(arguments(server_url, source.parent, "full", "kl_penalty_coef=1", teacher))
        return str(refusal.value)

    teacher = f"kl_reference={source}"
    assert asyncio.run(refused()).startswith(f"{teacher}: restoring tinker://")
    assert not (source.parent / "full").exists(), "a refused run leaves no directory"
