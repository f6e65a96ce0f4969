"""The server killed with kill -9 in the middle of a batch and started again: the run ends by itself, steps exact."""

import subprocess
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import read_lines
from tests.conftest import ROOT
from tests.support.command_runs import batches, command
from tests.support.small_server import Server

N_STEPS = 2
NO_EVAL = ("eval_tasks=", "allow_family_overlap=false", "max_turns=3", "n_parallel_envs=6")  # of 8: two still begin


def wait_for(process: "subprocess.Popen[str]", happened: Any) -> None:
    deadline = time.monotonic() + 1800
    while not happened():
        assert process.poll() is None and time.monotonic() < deadline, process.stdout and process.stdout.read()
        time.sleep(0.02)


@pytest.mark.nightly
@pytest.mark.parametrize("database", ["kept", "lost"])
def test_a_server_killed_while_sampling_is_gone_on_with(
    server_env: None, docker_ready: str, tmp_path: Path, database: str
) -> None:
    """With its database lost, the weights are made again from the seed and the trials on disk."""
    server = Server(tmp_path / "server")
    server.start()
    folder = tmp_path / "runs" / "lost"
    process = subprocess.Popen(
        command(server.url, tmp_path / "runs", "run_name=lost", f"max_steps={N_STEPS}", "num_substeps=2", *NO_EVAL),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_for(process, lambda: len(list((folder / "trajectories" / "step_000001").glob("*.npz"))) >= 2)
        server.kill()
        if database == "lost":
            server.forget()
        server.start()
        output, _ = process.communicate(timeout=1800)
    finally:
        process.kill()
        server.stop()
    assert process.returncode == 0, output
    assert "is restored as soon as the server answers" in output
    assert ("lost: the state after step 1" in output) == ("restored the adapter" in output) == (database == "lost")
    rows = read_lines(folder / "metrics.jsonl")
    assert [row["global_step"] for row in rows] == [1, 2]
    for row, taken in zip(rows, accumulate(row.get("optim/steps", 0) for row in rows), strict=True):
        assert row.get("optim/server_step", taken) == taken, "the server's weights have had each step once"
    ledger = read_lines(folder / "ledger.jsonl")
    graded = [record["trial"] for record in ledger if record.get("fate") == "graded"]
    assert len(graded) == len(set(graded)), "no finished trial was run again"
    trained = {record["step"]: record for record in ledger if record["event"] == "trained"}
    assert sorted(trained) == list(range(N_STEPS))
    in_ledger = [sorted(trained[step]["advantages"]) for step in range(N_STEPS)]
    assert [len(names) for names in in_ledger] == [len(batch) for batch in batches(folder)] == [8] * N_STEPS
