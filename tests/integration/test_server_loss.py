"""The server killed with kill -9 in the middle of a batch and started again: the run ends by itself, steps exact."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from src.run.jsonl import read_lines
from tests.conftest import ROOT, SMALL_SERVER, free_port, succeed
from tests.integration.test_train import MODEL, batches, command

N_STEPS = 2


class Server:
    """One that can be killed, and started again on the same port, with its database."""

    def __init__(self, state: Path) -> None:
        self._port = str(free_port())
        self._env = SMALL_SERVER | {"SKYRL_TX_PORT": self._port, "SKYRL_TX_STATE": str(state)}
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        succeed("scripts/start_skyrl_tx.sh", "--background", MODEL, env=self._env)

    def stop(self) -> None:
        succeed("scripts/stop_skyrl_tx.sh", self._port, env=self._env)

    def kill(self) -> None:
        """API and engine at once, as when the machine goes down."""
        found = subprocess.run(["pgrep", "-f", f"launch.py.*{self._port}"], capture_output=True, text=True, check=True)
        for pid in map(int, found.stdout.split()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def wait_for(process: "subprocess.Popen[str]", happened: Any) -> None:
    deadline = time.monotonic() + 300
    while not happened():
        assert process.poll() is None and time.monotonic() < deadline, process.stdout and process.stdout.read()
        time.sleep(0.02)


def test_a_server_killed_while_sampling_is_gone_on_with(server_env: None, docker_ready: str, tmp_path: Path) -> None:
    server = Server(tmp_path / "server")
    server.start()
    folder = tmp_path / "runs" / "lost"
    process = subprocess.Popen(
        command(server.url, tmp_path / "runs", "run_name=lost", f"max_steps={N_STEPS}", "num_substeps=2"),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_for(process, lambda: len(list((folder / "trajectories" / "step_000001").glob("*.npz"))) >= 2)
        server.kill()
        server.start()
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        server.stop()
    assert process.returncode == 0, output
    assert "is restored as soon as the server answers" in output and "restored tinker://" in output
    assert [row["global_step"] for row in read_lines(folder / "metrics.jsonl")] == [0, 1, 2]
    ledger = read_lines(folder / "ledger.jsonl")
    graded = [record["trial"] for record in ledger if record.get("fate") == "graded"]
    assert len(graded) == len(set(graded)), "no finished trial was run again"
    trained = {record["step"]: record for record in ledger if record["event"] == "trained"}
    assert sorted(trained) == list(range(N_STEPS))
    in_ledger = [sorted(trained[step]["advantages"]) for step in range(N_STEPS)]
    assert [len(names) for names in in_ledger] == [len(batch) for batch in batches(folder)] == [8] * N_STEPS
