"""Real parts for tests against live servers: tiny policy, self-hosted server, Docker engine. None is ever skipped."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: tests and what they start heed Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
BASE_IMAGE = "harbortrainer/base:bookworm"
SMALL_SERVER = {"MAX_LORA_ADAPTERS": "8", "MAX_LORA_RANK": "16", "SESSION_TIMEOUT": "30"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_script(
    *command: str | Path, env: dict[str, str] | None = None, timeout_sec: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs a script of the repository in its root. stderr is part of stdout."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=os.environ | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=timeout_sec,
        check=False,
    )


def succeed(*command: str | Path, env: dict[str, str] | None = None, timeout_sec: float = 300) -> str:
    """run_script; fails the test with the script's output unless it exits with 0."""
    done = run_script(*command, env=env, timeout_sec=timeout_sec)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    """The quickstart's policy, as an absolute path (the SDK cuts names with exactly two slashes; this has more)."""
    model = ROOT / "models" / "quickstart"
    if not (model / "model.safetensors").is_file():
        pytest.fail(f"{model} is missing: it is part of the repository, or made by scripts/quickstart")
    return model


@pytest.fixture(scope="session")
def server_env() -> None:
    """server/.venv is there."""
    succeed("scripts/setup.sh", "--server", timeout_sec=900)


@contextmanager
def live_server(model: Path, state: Path, **settings: str) -> Iterator[str]:
    """URL of a real server that serves `model`, with 7 LoRA slots and rank <= 16 unless `settings` say otherwise."""
    port = free_port()
    env = SMALL_SERVER | {"SKYRL_TX_PORT": str(port), "SKYRL_TX_STATE": str(state)} | settings
    succeed("scripts/start_skyrl_tx.sh", "--background", model, env=env)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        succeed("scripts/stop_skyrl_tx.sh", str(port), env=env)


@pytest.fixture(scope="session")
def server_url(tiny_model_dir: Path, server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server as we start it; one for the whole session."""
    with live_server(tiny_model_dir, tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="session")
def stock_url(tiny_model_dir: Path, server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """skyrl as published, but for the answers without which our SDK cannot talk to it."""
    with live_server(tiny_model_dir, tmp_path_factory.mktemp("stock"), SKYRL_TX_REPAIRS="sdk") as url:
        yield url


@pytest.fixture(scope="session")
def docker_ready() -> str:
    """The Docker engine answers, `docker compose` works, the base image is there; its tag is returned."""
    succeed("scripts/setup.sh", "--base-image", timeout_sec=900)
    return BASE_IMAGE
