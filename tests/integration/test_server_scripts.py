"""The server's scripts, with real servers."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harbortrainer.backend.contract import TINKER_DOCUMENTS, Contract
from harbortrainer.config import Config
from harbortrainer.errors import BackendError
from harbortrainer.training.outside import Outside
from tests.conftest import ROOT, SMALL_SERVER, free_port, run_script, succeed
from tests.support.server_parts import Raw
from tests.support.small_server import GONE_SEC, processes_of, wait_until

START = "scripts/start_skyrl_tx.sh"


@pytest.fixture
def settings(server_env: None, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Settings of a server of this test's own, which is stopped at the end, whatever happened."""
    env = SMALL_SERVER | {"SKYRL_TX_PORT": str(free_port()), "SKYRL_TX_STATE": str(tmp_path / "state")}
    yield env
    run_script("scripts/stop_skyrl_tx.sh", env=env)


def server_pid(settings: dict[str, str]) -> int:
    return int(Path(settings["SKYRL_TX_STATE"], "server.pid").read_text())


def test_starts_ready_tests_well_and_stops_clean(settings: dict[str, str], tiny_model_dir: Path) -> None:
    keys = {"TINKER_API_KEY": "tml-of-its-user", "WANDB_API_KEY": "of its user"}
    one_slot = settings | {"MAX_LORA_ADAPTERS": "2", "SESSION_TIMEOUT": "600"} | keys
    output = succeed(START, "--background", tiny_model_dir, env=one_slot)
    port = settings["SKYRL_TX_PORT"]
    assert re.search(rf"ready: http://127.0.0.1:{port} serves \S+ after [\d.]+ s", output)
    assert f"stop it with SKYRL_TX_STATE={settings['SKYRL_TX_STATE']} scripts/stop_skyrl_tx.sh {port}" in output
    pids = processes_of(settings["SKYRL_TX_STATE"])
    assert len(pids) == 2
    assert not [pid for pid in pids if b"of-its-user" in Path(f"/proc/{pid}/environ").read_bytes()]

    steps = succeed("scripts/test_skyrl_tx.py", f"http://127.0.0.1:{port}")
    assert len(re.findall("^ok ", steps, re.MULTILINE)) == 8 and "Warning" not in steps, steps
    Raw(f"http://127.0.0.1:{port}", tiny_model_dir, beats=False).adapter()  # raises unless the test gave its slot back

    again = run_script(START, tiny_model_dir, env=settings)
    assert again.returncode == 1
    assert "a server of scripts/start_skyrl_tx.sh runs there" in again.stdout
    assert f"scripts/stop_skyrl_tx.sh {port}" in again.stdout
    beside = run_script(START, tiny_model_dir, env=settings | {"SKYRL_TX_PORT": str(free_port()), "FRESH": "1"})
    assert (beside.returncode, len(beside.stdout.splitlines())) == (1, 1)
    state = settings["SKYRL_TX_STATE"]
    assert f"SKYRL_TX_STATE={state}: a server uses this folder (process {server_pid(settings)})" in beside.stdout
    assert Path(state, "tinker.db").exists()

    os.kill(server_pid(settings), signal.SIGTERM)
    assert wait_until(lambda: not processes_of(settings["SKYRL_TX_STATE"]), GONE_SEC), "still there after SIGTERM"


def test_port_of_another_program(settings: dict[str, str], tiny_model_dir: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = run_script(START, tiny_model_dir, env=settings | {"SKYRL_TX_PORT": port})
        stopped = run_script("scripts/stop_skyrl_tx.sh", port, env=settings)
    assert stopped.returncode == 1 and f"port {port} is in use, but not by the server of" in stopped.stdout
    assert done.returncode == 1
    assert done.stdout == f"error: port {port} is in use by another program; set SKYRL_TX_PORT to a free one\n"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("models/absent", ["models/absent", "no such directory"]),
        ("/nowhere/at/all", ["/nowhere/at/all", "no such directory"]),
        ("", ["usage: scripts/start_skyrl_tx.sh"]),
    ],
)
def test_missing_model(settings: dict[str, str], model: str, words: list[str]) -> None:
    done = run_script(START, model, env=settings)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1
    assert all(word in done.stdout for word in words)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("SKYRL_TX_PORT", "abc", "must be a whole number, 1 or more"),
        ("SKYRL_TX_PORT", "70000", "must be 65535 or less"),
        ("MAX_LORA_ADAPTERS", "1", "must be a whole number, 2 or more"),
        ("MAX_LORA_RANK", "8x", "must be a whole number, 1 or more"),
        ("SESSION_TIMEOUT", "0", "must be a whole number, 1 or more"),
        ("SKYRL_TX_KEEP_SEC", "0", "must be a whole number, 1 or more"),
        ("SKYRL_TX_CONTEXT_LIMIT", "-1", "must be a whole number, 0 or more"),
        ("GRADIENT_CHECKPOINTING", "yes", "must be true or false"),
        ("SKYRL_TX_LOG_MB", "0", "must be a whole number, 1 or more"),
        ("VLLM_HANG_SEC", "5m", "must be a whole number, 0 or more"),
        ("VLLM_MEM", "45", "must be a share of a GPU's memory"),
    ],
)
def test_a_wrong_setting_is_one_line(settings: dict[str, str], name: str, value: str, rule: str) -> None:
    done = run_script(START, "models/quickstart", env=settings | {name: value})
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 1)
    assert done.stdout.startswith(f"error: {name}={value}: {rule}")


def test_model_name_with_two_slashes(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    link = ROOT / ".state" / "two"
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "a", target_is_directory=True)
    try:
        done = run_script(START, ".state/two/b", env=settings)
    finally:
        link.unlink()
    assert done.returncode == 1
    assert "exactly two slashes" in done.stdout


def test_incomplete_model_directory(settings: dict[str, str], tmp_path: Path) -> None:
    done = run_script(START, "--background", tmp_path, env=settings)
    assert done.returncode == 1
    assert "needs config.json and *.safetensors" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_class_that_is_not_computed_is_refused_by_its_name(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3_5MoeForConditionalGeneration"]}')
    (tmp_path / "model.safetensors").touch()
    done = run_script(START, tmp_path, env=settings | {"JAX_PLATFORMS": "cpu"})
    assert done.returncode == 1 and len(done.stdout.strip().splitlines()) == 1, done.stdout
    assert "Qwen3_5MoeForConditionalGeneration: not computed by this server" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "words"), [("3", "num_attention_heads=4 and num_key_value_heads=2"), ("4", "num_key_value_heads=2")]
)
def test_heads_that_cannot_be_spread(settings: dict[str, str], size: str, words: str) -> None:
    done = run_script(START, "models/quickstart", size, env=settings | {"JAX_PLATFORMS": "cpu"})
    assert done.returncode == 1 and len(done.stdout.strip().splitlines()) == 1, done.stdout
    assert done.stdout.startswith(f"TP {size}: {words} of models/quickstart cannot be divided by it; give a TP of 1, 2")


def test_missing_server_environment(tmp_path: Path) -> None:
    succeed("cp", "-r", "scripts", tmp_path)
    done = run_script(tmp_path / START, "models/quickstart")
    assert done.returncode == 1
    assert "run scripts/setup.sh --server" in done.stdout


def test_connection_test_against_closed_port() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = run_script("scripts/test_skyrl_tx.py", url)
    assert done.returncode == 1
    assert f"nothing listens at {url}" in done.stdout
    assert "scripts/start_skyrl_tx.sh" in done.stdout
    assert "Traceback" not in done.stdout


TALKS = """
import sys, time
for n in range(50_000):
    print("a line with", n, "x" * 64)
print("ready: http://x:1 serves m after 1 s", flush=True)
for n in range(50_000, 150_000):
    print("a line with", n, "x" * 64)
sys.stdout.flush()
print("the end", file=sys.stderr)
time.sleep(60)
"""


def test_the_log_of_a_server_in_the_background_is_bounded(tmp_path: Path, server_env: None) -> None:
    """With another program in the server's place."""
    old = tmp_path / "server.log.1"
    old.write_text("of an earlier start")
    start = f"start_in_background {tmp_path} 1 {sys.executable} -c '{TALKS}'; ready_url {tmp_path}"
    script = f"source scripts/lib/common.sh; source scripts/lib/server.sh; SKYRL_TX_LOG_MB=1; {start}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "http://x:1", done
    log = tmp_path / "server.log"
    assert wait_until(lambda: log.read_text().endswith("the end\n"), GONE_SEC)
    os.kill(int((tmp_path / "server.pid").read_text()), signal.SIGKILL)
    parts = [*(tmp_path / f"server.log.{number}" for number in (3, 2, 1)), log]
    lines = [line for part in parts for line in part.read_text().splitlines()]
    numbers = [int(line.split()[3]) for line in lines if line.startswith("a line")]
    assert numbers == list(range(numbers[0], 150_000)) and numbers[0] > 50_000
    assert all(part.stat().st_size <= 1 << 20 for part in parts) and not (tmp_path / "server.log.4").exists()


def test_a_server_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path, server_env: None) -> None:
    start = f"start_in_background {tmp_path} 1 {sys.executable} -c 'raise ValueError(\"why\")'"
    script = f"source scripts/lib/common.sh; source scripts/lib/server.sh; SKYRL_TX_LOG_MB=1; {start}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1 and "ValueError: why" in done.stderr
    assert f"error: the server did not start; its whole log: {tmp_path}/server.log" in done.stderr


@contextlib.contextmanager
def in_the_foreground(settings: dict[str, str], model: Path) -> Iterator[str]:
    """A server as in a terminal, until Ctrl-C; what it has said when it is ready."""
    command = [START, str(model)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | settings, **pipes, start_new_session=True) as server:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            if line.startswith("ready: "):
                break
        assert server.poll() is None, said
        yield "".join(said)
        os.killpg(server.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
        server.stdout.read()
        server.wait(timeout=GONE_SEC)


@pytest.mark.nightly
async def test_in_the_foreground_it_forgets_what_was_requires_a_key_and_stops_on_interrupt(
    settings: dict[str, str], tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that others can reach requires the key."""
    state = Path(settings["SKYRL_TX_STATE"])
    old = state / "checkpoints" / "old"
    old.mkdir(parents=True)
    state.joinpath("tinker.db").write_text("no database")
    monkeypatch.delenv("SKYRL_TX_API_KEY", raising=False)
    with in_the_foreground(settings | {"FRESH": "1", "SKYRL_TX_HOST": "0.0.0.0"}, tiny_model_dir) as output:
        assert not old.exists()
        file = state / "api_key"
        key = file.read_text().strip()
        assert str(file) in output and key not in output and file.stat().st_mode & 0o77 == 0
        for process in processes_of(state):
            assert key not in Path(f"/proc/{process}/cmdline").read_text()
        url = f"http://127.0.0.1:{settings['SKYRL_TX_PORT']}"
        await refuses_all_but(key, url, str(tiny_model_dir))
        monkeypatch.setenv("SKYRL_TX_API_KEY", key)

        async def documented(*_: object) -> Contract:
            return TINKER_DOCUMENTS

        given = {"backend": "skyrl-tx", "skyrl_tx_url": url, "model_name": str(tiny_model_dir), "tasks_dir": "d"}
        backend = await Outside(measure=documented).connect(Config(**given, context_limit=4096))  # pyright: ignore[reportArgumentType]
        await backend.api.unload(url, ["none"])
        await backend.close(done=True)
    assert wait_until(lambda: not processes_of(state), GONE_SEC)


async def refuses_all_but(key: str, url: str, model: str) -> None:
    """Without a key, with another one or in another header it answers 401; a trainer says so.

    The connection test sends the key: it is told which model is served.
    """
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=600) as client:
        assert (await client.get("/healthz")).status_code == 200
        body = {"model_id": "m", "type": "unload_model"}
        for headers in ({}, {"X-API-Key": "tml-" + "0" * 48}, {"Authorization": f"Bearer {key}"}):
            assert (await client.post("/unload_model", json=body, headers=headers)).status_code == 401
    with pytest.raises(BackendError, match=r"SKYRL_TX_API_KEY: the server refuses this key"):
        await Outside().connect(Config(backend="skyrl-tx", skyrl_tx_url=url, model_name=model, tasks_dir="d"))
    tested = run_script("scripts/test_skyrl_tx.py", url, "Qwen/Qwen3-4B", env={"SKYRL_TX_API_KEY": key})
    assert tested.returncode == 1 and "not Qwen/Qwen3-4B" in tested.stdout
