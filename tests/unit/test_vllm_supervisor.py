"""The supervisor of vLLM, with a small program in vLLM's place: restarts, giving up, and its end with the server."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import logs
import pytest
import sampler_hang
import sampler_start

import sampler
from repairs.vllm_adapters import Adapters
from repairs.vllm_client import Ask, Vllm
from repairs.vllm_sampling import Sampling
from repairs.vllm_status import ReplicaStatus, read_status, trouble
from sampler import Plan
from tests.conftest import ROOT
from tests.support.fake_vllm import KEY, FakeVllm
from tests.support.tiers import first
from tests.support.vllm_plan import plan_of

SERVER = """
import http.server, os, pathlib, sys
if not (engine := os.fork()):  # as vLLM's, which does not end with it
    import time
    time.sleep(600)
pathlib.Path(sys.argv[2]).write_text(f"{os.getpid()} {engine}")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
FAILING = "raise ValueError('Free memory on device cuda:0 (3/139 GiB) is less than desired')"
GPU = {"gpus": ("1",), "memory": 0.9}


def flags(plan: Plan) -> dict[str, str]:
    words = sampler.command(plan, 0)
    return dict(zip(words, [*words[1:], ""], strict=True))


def test_a_cpu_splits_no_prompt_and_a_gpu_takes_its_share(tmp_path: Path) -> None:
    cpu, gpu = flags(plan_of(tmp_path)), flags(plan_of(tmp_path, **GPU, flags="--enforce-eager --seed 3"))
    assert cpu["--max-num-batched-tokens"] == "4096" and "--no-enable-chunked-prefill" in cpu
    assert cpu["--host"] == "127.0.0.1" and cpu["--max-lora-rank"] == "16" and "--gpu-memory-utilization" not in cpu
    assert gpu["--gpu-memory-utilization"] == "0.9" and "--no-enable-chunked-prefill" not in gpu
    assert gpu["--max-num-seqs"] == str(max(sampler.GRAPHS)) and "--max-num-seqs" not in cpu
    assert "--hf-overrides" not in gpu and "--distributed-executor-backend" not in gpu
    assert cpu["--distributed-executor-backend"] == "uni"
    assert sampler.environment(plan_of(tmp_path), 0)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    yarn = {"rope_type": "yarn", "factor": 4.0}
    overrides = json.loads(flags(plan_of(tmp_path, positions=yarn))["--hf-overrides"])
    assert overrides == {"rope_parameters": yarn, "max_position_embeddings": 4096}
    assert gpu["--seed"] == "3" and "--enforce-eager" in gpu


def test_vllm_adapts_the_experts_of_a_mixture(tmp_path: Path) -> None:
    """A name of its own: is_in_target_modules in vllm/lora/utils.py looks for "experts", not for their projections."""
    words = sampler.command(plan_of(tmp_path), 0)
    adapted = words[words.index("--lora-target-modules") + 1 : words.index("--enable-lora")]
    assert {"experts", "gate_proj", "up_proj", "down_proj", "q_proj", "out_proj"} <= set(adapted)


def test_vllm_sees_its_own_gpu_and_no_setting_of_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "0")
    found = sampler.environment(plan_of(tmp_path, **GPU), 0)
    assert found["CUDA_VISIBLE_DEVICES"] == "1" and found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in found
    assert "PYTHONPATH" not in sampler.environment(plan_of(tmp_path), 0)


@pytest.mark.parametrize(
    ("values", "on_cpu", "switches"),
    [
        ({}, True, ()),
        ({"linear_key_head_dim": 128}, False, ()),
        ({"linear_key_head_dim": 128}, True, ("--no-enable-prefix-caching",)),
        ({"linear_key_head_dim": 128, "vision_config": {}}, False, ("--language-model-only",)),
    ],
)
def test_a_kind_of_model_has_switches_of_its_own(
    tmp_path: Path, values: dict[str, Any], on_cpu: bool, switches: tuple[str, ...]
) -> None:
    found = sampler_start.switches_for(values, on_cpu)
    assert found == switches
    words = sampler.command(plan_of(tmp_path, switches=found, flags="--seed 3"), 0)
    assert words[-2 - len(switches) :] == [*switches, "--seed", "3"], "the operator's come last"


@contextlib.asynccontextmanager
async def supervised(plan: Plan, program: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    def command(of: Plan, index: int) -> list[str]:
        return [sys.executable, "-c", program, str(of.ports[index]), f"{of.folder}/pid"]

    monkeypatch.setattr(sampler, "command", command)
    task = asyncio.create_task(sampler.supervise(plan))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(plan: Plan, condition: Callable[[ReplicaStatus], bool]) -> ReplicaStatus:
    end = time.monotonic() + 600
    while not (found := read_status(plan.status)) or not condition(found[0]):
        assert time.monotonic() < end, found
        await asyncio.sleep(0.01)
    return found[0]


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def pids(folder: Path) -> list[int]:
    """Of vLLM and its engine."""
    return [int(word) for word in Path(folder, "pid").read_text().split()]


async def test_vllm_that_ends_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path)
    async with supervised(plan, SERVER, monkeypatch):
        first = await until(plan, lambda one: one["state"] == "ready")
        assert first["deaths"] == 0 and trouble([first]) == ""
        killed, engine = pids(tmp_path)
        os.kill(killed, signal.SIGKILL)
        again = await until(plan, lambda one: one["state"] == "ready" and one["deaths"] == 1)
        assert ended(engine)
        assert again["url"] == first["url"] and (pid := pids(tmp_path)[0]) != killed
    assert ended(pid)


async def test_vllm_that_ends_too_often_stays_away_and_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path)
    async with supervised(plan, FAILING, monkeypatch):
        status = await until(plan, lambda one: one["state"] == "given up")
    assert status["deaths"] == 3 and "VLLM_MEM" in status["cause"] and "XLA_PYTHON_CLIENT_MEM" in status["cause"]
    assert trouble([status]) == f"; it ended 3 times ({status['cause']}), its log: {plan.log(0)}"
    assert Path(status["log"]).read_text().count("Free memory on device") == 3
    assert "given up after 3 ends in ten minutes" in capsys.readouterr().out


async def test_a_full_disk_ends_no_vllm_and_its_state_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path)
    async with supervised(plan, SERVER, monkeypatch):
        await until(plan, lambda one: one["state"] == "ready")
        plan.status.with_suffix(".new").mkdir()  # cannot be written now
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        Path(tmp_path, "pid").unlink()
        while not Path(tmp_path, "pid").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        plan.status.with_suffix(".new").rmdir()
        await until(plan, lambda one: one["state"] == "ready" and one["deaths"] == 1)


# Hangs in its first life: it takes samples, and answers /health and /metrics
HANGS = """
import asyncio, os, pathlib, sys
from tests.support.fake_vllm import FakeVllm
async def serve():
    fake, note = FakeVllm("m"), pathlib.Path(sys.argv[2])
    fake.port = int(sys.argv[1])
    if not note.exists():
        fake.gate.clear()
    await fake.start()
    note.write_text(str(os.getpid()))
    await asyncio.Event().wait()
asyncio.run(serve())
"""


async def test_vllm_that_hangs_is_started_again_and_what_waited_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path, hang_sec=3.0, max_deaths=1000)
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setattr(sampler, "environment", lambda *_: os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/server"})
    [url] = plan.urls
    client = Vllm(url, KEY)
    adapters = Adapters(tmp_path / "checkpoints", tmp_path / "adapters", "m", [client])
    ask = Ask(prompt=(1, 2, 3), n=1, max_tokens=4, temperature=1.0, top_p=1.0, top_k=-1, seed=None)
    async with supervised(plan, HANGS, monkeypatch):
        await until(plan, lambda one: one["state"] == "ready")
        waiting = Sampling([client], adapters, "m", plan.status, lambda _: None).sample(ask, "", "", None)
        assert (await asyncio.wait_for(waiting, 600))["sequences"]
        status = await until(plan, lambda one: one["state"] == "ready")
        await client.close()
    assert "it computed nothing for 3 s (VLLM_HANG_SEC)" in status["cause"]
    assert "it computed nothing for 3 s (VLLM_HANG_SEC), and was ended); started again" in capsys.readouterr().out


@contextlib.asynccontextmanager
async def watched(fake: FakeVllm) -> AsyncIterator["asyncio.Task[None]"]:
    await fake.start()
    task = asyncio.create_task(sampler_hang.until_it_hangs(fake.url, fake.base_model, 2.0))
    try:
        yield task
    finally:
        task.cancel()
        fake.gate.set()
        await fake.stop()


async def looked_at(fake: FakeVllm, times: int) -> None:
    while fake.looks < times:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.nightly
async def test_which_vllm_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side: each takes seconds."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)

    async def samples_nothing(poison: tuple[list[int], int] | None) -> None:
        fake = FakeVllm()
        if poison is None:
            fake.gate.clear()
        else:
            fake.poison = poison
        async with watched(fake) as hangs:
            await asyncio.wait_for(hangs, 600)
        assert fake.asked

    async def has_so_much_work_that_a_small_request_waits() -> None:
        fake = FakeVllm()
        fake.gate.clear()
        fake.per_look = 1
        async with watched(fake) as hangs:
            await asyncio.wait_for(looked_at(fake, sampler_hang.LOOKS + 2), 600)
            assert not hangs.done() and not fake.asked

    async def is_idle() -> None:
        fake = FakeVllm()
        async with watched(fake) as hangs:
            await asyncio.wait_for(looked_at(fake, sampler_hang.LOOKS + 2), 600)
            assert not hangs.done() and fake.asked

    silent, answers_500 = samples_nothing(None), samples_nothing(([0], 500))
    await asyncio.gather(silent, answers_500, has_so_much_work_that_a_small_request_waits(), is_idle())


async def test_the_log_of_vllm_is_bounded_and_names_the_last_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, max_deaths=1)
    program = "for n in range(8_000): print('a line with', n, 'x' * 640)\nraise ValueError('the last')"
    for number in range(1, 9):
        tmp_path.joinpath(f"vllm.log.{number}").write_text("of an earlier start")
    async with supervised(plan, program, monkeypatch):
        status = await until(plan, lambda one: one["state"] == "given up")
    assert status["cause"] == "ValueError: the last" and plan.log(0).read_text().endswith("ValueError: the last\n")
    parts = [plan.log(0), *(plan.log(0).with_name(f"vllm.log.{number}") for number in range(1, logs.KEPT + 1))]
    lines = [line for part in reversed(parts) for line in part.read_text().splitlines() if line.startswith("a line")]
    numbers = [int(line.split()[3]) for line in lines]
    assert numbers == list(range(numbers[0], 8_000)), "whole lines, in order, and the last ones"
    assert all(part.stat().st_size <= 1 << 20 for part in parts) and numbers[0] > 0


def test_a_log_that_cannot_be_written_for_a_while_costs_lines_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    log = logs.Log(folder / "a.log", 100)
    log.write(b"first\nhalf of ")
    shutil.rmtree(folder)
    for _ in range(3):
        log.write(b"x" * 90 + b"\n")
    folder.mkdir()
    log.write(b"last\n")
    log.close()
    assert (folder / "a.log").read_text() == "last\n"


WATCHES = """
import subprocess, sys, threading, time
sys.path.insert(0, "server")
import sampler_start
ended, stopping = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]), threading.Event()
if len(sys.argv) > 1:
    stopping.set()
sampler_start.end_with(ended, stopping)
time.sleep(0 if stopping.is_set() else 600)
"""


@pytest.mark.parametrize("stopping", [False, True])
def test_a_server_whose_supervisor_has_ended_ends_too_unless_it_stops_it_itself(stopping: bool) -> None:
    command = [sys.executable, "-c", WATCHES, *["stopping"] * stopping]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == (0 if stopping else -signal.SIGTERM), done.stderr
    assert ("ended with status 3" in done.stdout) is not stopping


def test_a_server_whose_log_nobody_takes_ends_with_its_supervisor_all_the_same() -> None:
    source, sink = os.pipe()
    os.close(source)
    done = subprocess.run([sys.executable, "-c", WATCHES], cwd=ROOT, stdout=sink, timeout=600, check=False)
    os.close(sink)
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("text", ["localhost:8100", "http://a:1,", "http://a:1,b:2"])
def test_an_address_of_vllm_that_is_no_url_is_refused(text: str) -> None:
    assert sampler_start.urls_of("http://a:1/, http://b:2") == ("http://a:1", "http://b:2")
    with pytest.raises(SystemExit, match=r"VLLM_URLS=.*: needs http://HOST:PORT"):
        sampler_start.urls_of(text)


async def all_ended(processes: list[int]) -> None:
    async with asyncio.timeout(600):
        while not all(map(ended, processes)):  # noqa: ASYNC110 -- they are no children
            await asyncio.sleep(0.01)


# As server/launch.py starts it; waits to be killed
PARENT = """
import os, subprocess, sys, time
sys.path.insert(0, "server")
import sampler
program = open(sys.argv[2]).read()
main = "import sys; sys.path.insert(0, 'server'); import sampler; sampler.PYTHON = sys.executable; " + (
    "sampler.command = lambda plan, i: [sys.executable, '-c', open(sys.argv[3]).read(), str(plan.ports[0]), "
    "plan.folder + '/pid']; sampler.main()")
print(subprocess.Popen([sys.executable, "-c", main, str(os.getpid()), sys.argv[1], sys.argv[2]]).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("killed", first(1, ["server", "supervisor"]))
async def test_vllm_ends_with_the_server_however_that_was_killed(tmp_path: Path, killed: str) -> None:
    """Its engine, too, which is not told of vLLM's end."""
    program, plan = tmp_path / "server.py", plan_of(tmp_path)
    program.write_text(SERVER)
    arguments = (sampler.to_argument(plan), str(program))
    assert sampler.from_argument(arguments[0]) == plan
    pipe = asyncio.subprocess.PIPE
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, *arguments, cwd=ROOT, stdout=pipe)
    try:
        await until(plan, lambda one: one["state"] == "ready")
        both = pids(tmp_path)
        if killed == "supervisor":
            assert parent.stdout is not None
            os.kill(int(await parent.stdout.readline()), signal.SIGKILL)
            await all_ended(both)
    finally:
        parent.kill()
        await parent.wait()
    await all_ended(both)
    assert json.loads(plan.status.read_text())
