"""Runs as a user starts them, in processes of their own."""

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import docker
import pytest

from harbortrainer.cli.main import main
from harbortrainer.run.directory import RunDirectory, run_ids
from harbortrainer.run.trajectories import read_batch
from tests.conftest import MODEL, ROOT

TASKS = "datasets/quickstart"
HELD_OUT = "create-6,copy-6"
SMALL = (
    "lora_rank=8 batch_size=2 group_size=4 n_parallel_envs=4 max_turns=4 max_tokens=40 context_limit=2048 "
    f"learning_rate=3e-3 eval_tasks={HELD_OUT} allow_family_overlap=true save_every=1 keep_checkpoints=2"
).split()


def command(url: str, logs_dir: Path, *arguments: str) -> list[str]:
    return [
        sys.executable, "-m", "src.train", "backend=skyrl-tx", f"skyrl_tx_url={url}", f"model_name={MODEL}",
        f"tasks_dir={TASKS}", f"logs_dir={logs_dir}", *SMALL, *arguments,
    ]  # fmt: skip


def run(arguments: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("SKYRL_TX_URL", "TINKER_API_KEY")} | environment
    return subprocess.run(
        arguments,
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def called(arguments: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """`run` in this process, where the imports are done."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name in ("SKYRL_TX_URL", "TINKER_API_KEY"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        status = main(["train", *arguments[3:]])  # behind python -m src.train
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, cwd=ROOT, env=os.environ | {"WANDB_API_KEY": ""},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def until(process: subprocess.Popen[str], happened: Callable[[], object], over: bool = False) -> None:
    """Wait; `over`: for the end of the process, else it must not end before."""
    deadline = time.monotonic() + 1800
    while not happened():
        if process.poll() is not None and over:
            return
        assert process.poll() is None and time.monotonic() < deadline, process.stdout and process.stdout.read()
        time.sleep(0.1)


def containers(run: Path) -> list[Any]:
    """Of a run; none before its folder exists."""
    if not (run / "run.json").exists():
        return []
    label = f"harbortrainer.run_id={run_ids(RunDirectory(run)).run_id}"
    return docker.from_env().containers.list(all=True, filters={"label": label}, ignore_removed=True)


def batches(folder: Path) -> list[list[str]]:
    """Task names of each training batch, in order of the trials' names."""
    steps = sorted((folder / "trajectories").glob("step_*"))
    return [[t.task_name for _, t in sorted(read_batch(step).items())] for step in steps]


def refused(arguments: Sequence[str], **environment: str) -> str:
    done = called(arguments, **environment)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr
