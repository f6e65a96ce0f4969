"""A server with the quickstart's policy and small runs on it: the product as a user has it, in separate processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.report import ROOT
from src.run.directory import RunDirectory

MODEL = "models/quickstart"
SAVE_EVERY = 2
N_TRIALS = 8  # of a training batch
SETTINGS = (
    f"backend=skyrl-tx model_name={MODEL} tasks_dir=datasets/quickstart lora_rank=8 batch_size=2 group_size=4 "
    "n_parallel_envs=4 max_turns=4 max_tokens=40 context_limit=2048 learning_rate=3e-3 lr_schedule=linear "
    "eval_tasks=create-6,copy-6 allow_family_overlap=true eval_group_size=2 eval_every=3 "
    f"save_every={SAVE_EVERY} keep_checkpoints=2"
).split()


@dataclass(frozen=True)
class Server:
    url: str
    state: Path

    def adam_steps(self, checkpoint: str) -> int:
        """Of a saved state, tinker://MODEL_ID/weights/NAME."""
        match = re.fullmatch(r"tinker://(.+)/weights/(.+)", checkpoint)
        assert match is not None
        folder = self.state / "checkpoints" / match.group(1) / f"{match.group(2)}.tar.gz"
        command = ["server/.venv/bin/python", "scripts/bench/adam_steps.py", str(folder)]
        env = os.environ | {"JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        return int(done.stdout)


@contextmanager
def server() -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-server-") as state:
        env = {"MAX_LORA_ADAPTERS": "8", "MAX_LORA_RANK": "16", "SESSION_TIMEOUT": "30"}
        env = os.environ | env | {"SKYRL_TX_PORT": str(port), "SKYRL_TX_STATE": state}
        subprocess.run(["scripts/start_skyrl_tx.sh", "--background", MODEL], cwd=ROOT, env=env, check=True)
        try:
            yield Server(f"http://127.0.0.1:{port}", Path(state))
        finally:
            subprocess.run(["scripts/stop_skyrl_tx.sh", str(port)], cwd=ROOT, env=env, check=True)


class Trainer:
    """One process of `python -m src.train`; its output goes to `log`."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "src.train", *arguments], cwd=ROOT, stdout=file, stderr=file,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def peak_mib(self) -> float:
        """Of memory, so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def cpu_seconds(self) -> float:
        """So far, without its children."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def status(self) -> int:
        """Of its end, which is waited for."""
        try:
            return self._process.wait()
        except BaseException:
            self.kill()
            raise

    def wait(self) -> None:
        """To its end. Raises SystemExit with the log unless it did well."""
        if (status := self.status()) != 0:
            raise SystemExit(f"the trainer ended with {status}:\n{self.log.read_text()[-4000:]}")


def start(server: Server, run: RunDirectory, steps: int, log: Path | None = None) -> Trainer:
    """A new run, or the one in that folder resumed. `log`: None = beside it."""
    log = log or run.path.with_suffix(".log")
    if run.config.exists():
        return Trainer(log, f"resume={run.path}")
    names = [f"logs_dir={run.path.parent}", f"run_name={run.name}", f"max_steps={steps}"]
    return Trainer(log, *SETTINGS, f"skyrl_tx_url={server.url}", *names)
