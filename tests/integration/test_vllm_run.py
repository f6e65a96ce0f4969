"""The quickstart's run with SAMPLER=vllm, real vLLM, real Docker; a kill of vLLM while a step samples. At night."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbortrainer.durable.jsonl import read_lines
from tests.conftest import ROOT
from tests.support.report_parts import only_run
from tests.support.small_server import Server
from tests.support.vllm_server import sampling, vllm_process, vllm_server

pytestmark = pytest.mark.nightly
STEPS = 3
MOST_KL = 1e-3  # nats a token, sampler against trainer
RUN_SEC = 3000.0
SHOWN = (
    "reward/mean",
    "logprobs/kl_sampler_trainer",
    "logprobs/max_abs_difference",
    "time/sample",
    "time/update",
    "time/publish",
)


def quickstart(name: str) -> list[str]:
    """The words of an array in run_quickstart.sh."""
    found = re.search(rf"^{name}=\(.*?\n\)$|^{name}=\(.*\)$", (ROOT / "run_quickstart.sh").read_text(), re.M | re.S)
    assert found is not None
    script = f'{found[0]}\nprintf "%s\\n" "${{{name}[@]}}"'
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def server(server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = dict(word.split("=", 1) for word in quickstart("SERVER"))
    with vllm_server(tmp_path_factory.mktemp("run"), **settings) as server:
        yield server


@pytest.fixture(scope="module")
def run(server: Server, docker_ready: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps; vLLM's engine is killed with samples of the second in flight."""
    logs = tmp_path_factory.mktemp("runs")
    own = (f"skyrl_tx_url={server.url}", f"logs_dir={logs}", "run_name=vllm", f"max_steps={STEPS}")
    command = [sys.executable, "-m", "src.train", "backend=skyrl-tx", *quickstart("SETTINGS"), *own]
    log = (logs / "log").open("wb")
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=os.environ | {"WANDB_API_KEY": ""})
    try:
        end = time.monotonic() + RUN_SEC
        rows = logs / "vllm" / "metrics.jsonl"
        while not (rows.exists() and len(read_lines(rows)) > 1 and sampling(server.url)["in_flight"]):
            assert process.poll() is None and time.monotonic() < end, (logs / "log").read_text()[-5000:]
            time.sleep(0.2)
        os.kill(vllm_process(server.state, engine=True), signal.SIGKILL)
        assert process.wait(end - time.monotonic()) == 0, (logs / "log").read_text()[-5000:]
    finally:
        process.kill()
    return logs / "vllm"


def test_the_run_ends_well_by_itself(run: Path) -> None:
    rows = read_lines(run / "metrics.jsonl")
    assert [row["global_step"] for row in rows] == list(range(STEPS + 1))
    for row in rows[1:]:
        numbers = {name: row.get(name) for name in ("reward/mean", "time/sample", "time/update", "time/publish")}
        print(row["global_step"], numbers, row.get("logprobs/kl_sampler_trainer"))
        assert row["group/trials_lost"] == 0
        assert row["rollout/trials"] == 48


def test_the_trainer_trains_on_what_vllm_sampled(run: Path) -> None:
    rows = [row for row in read_lines(run / "metrics.jsonl") if "logprobs/kl_sampler_trainer" in row]
    assert rows, "no step trained"
    assert max(row["logprobs/kl_sampler_trainer"] for row in rows) <= MOST_KL


def test_the_run_directory_names_the_sampler(run: Path) -> None:
    sampler = json.loads((run / "versions.json").read_text())["sampler"]
    assert re.fullmatch(r"vllm \d+\.\d+\.\d+", sampler)
    assert json.loads((run / "effective.json").read_text())["server"]["sampler"] == sampler
    shown = only_run(run / "report.html")
    assert shown["versions"]["sampler"] == shown["effective"]["server"]["sampler"] == sampler


def test_vllm_was_killed_once_and_sampled(run: Path, server: Server) -> None:
    [status] = json.loads((server.state / "vllm.json").read_text())
    assert status["deaths"] == 1 and status["state"] == "ready"
    counted = sampling(server.url)
    assert counted["prompt_tokens"] > 0
    print(f"{counted['cached_tokens']} of {counted['prompt_tokens']} prompt tokens from the cache")
