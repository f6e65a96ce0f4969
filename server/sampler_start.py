"""Starts the sampler of `--sampler vllm` beside the API: checks, ports, the supervisor, and what the repairs read.

With --external-inference-url URL[,URL] it uses vLLM servers that run already and starts none.
"""

# pyright: reportMissingImports=false
import argparse
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import sampler_memory
from logs import say

import sampler
from repairs import handover
from repairs.machine import host_bytes
from repairs.vllm_status import read_status, trouble

KEY = "VLLM_API_KEY"  # in the environment of this process, the supervisor and vLLM: in no command line
OWN_MEMORY = 0.9  # share of a GPU that vLLM takes without the trainer on it
STOP_SEC = 10.0
HANG_SEC, HANG_CPU_SEC = 300, 1800  # a CPU reads a long prompt, all at once, in that time
PARALLEL = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp")
MOE_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Wiring:
    """`folder`: of unpacked adapters; `handed`: of those that the engine hands over, for both processes.

    `status_file`: what the supervisor writes; None without one.
    """

    urls: tuple[str, ...]
    key: str
    folder: str
    handed: str
    version: str
    status_file: Path | None

    def is_ready(self) -> bool:
        replicas = read_status(self.status_file)
        return self.status_file is None or (bool(replicas) and all(one["state"] == "ready" for one in replicas))

    def given_up(self) -> str:
        """Why no replica runs; empty while one does, or may."""
        replicas = read_status(self.status_file)
        return trouble(replicas) if replicas and any(one["state"] == "given up" for one in replicas) else ""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sampler", choices=("jax", "vllm", "auto"), default="jax", help="what computes samples")
    parser.add_argument(
        "--vllm-gpus", default="", help="GPUs of vLLM, one a replica, such as 1,2; empty: the first, shared"
    )
    parser.add_argument(
        "--vllm-mem", type=float, default=0.0, help="share of a GPU for vLLM; 0: computed where shared, else 0.9"
    )
    parser.add_argument("--vllm-cpu-replicas", type=int, default=1, help="vLLM servers on a CPU")
    parser.add_argument(
        "--vllm-max-deaths", type=int, default=3, help="ends in ten minutes after which vLLM stays away"
    )
    parser.add_argument(
        "--vllm-hang-sec", type=int, default=0, help="seconds without a token until vLLM is restarted; 0: 300, CPU 1800"
    )
    parser.add_argument("--vllm-flags", default="", help="more flags of vLLM, in one string")


def choose(args: argparse.Namespace) -> None:
    """Settles "auto", and the shares of a GPU that trainer and vLLM both use. Exits with one line where they cannot."""
    from skyrl.tinker import api

    from repairs import positions
    from repairs.api_limits import context_limit, model_config, model_folder

    config = model_config()
    if args.sampler == "auto":
        able = "vllm" in args.repairs and positions.is_ours(config) and not any(map(config.get, MOE_FIELDS))
        if not able:
            args.sampler = "jax"
            sampler_memory.leave_to_trainer()
    shared = shares_gpu(args)
    if gpus_of(args) and not shared:
        sampler_memory.leave_to_trainer()
    given = args.vllm_mem and os.environ.get(sampler_memory.FRACTION)
    if args.sampler != "jax" and shared and not given and not api.app.state.engine_config.external_inference_url:
        check(args)
        weights = sum(file.stat().st_size for file in model_folder().glob("*.safetensors"))
        settings = api.app.state.engine_config.backend_config
        needed = sampler_memory.need(config, weights, context_limit(), settings, host_bytes())
        say(sampler_memory.settle(args, sampler_memory.memory_of(first_gpu()), needed, context_limit()))


@contextmanager
def sampling(args: argparse.Namespace, marker: Path) -> Iterator[Wiring | None]:
    """vLLM's servers, kept running until the block ends; None with the JAX sampler. Exits with one line if it cannot.

    `marker`: the file that the engine makes when it has taken its memory; on a shared GPU vLLM takes its own after it.
    """
    from skyrl.tinker import api

    config = api.app.state.engine_config
    if args.sampler == "jax" and not (args.repairs and config.external_inference_url):
        yield None
        return
    check(args)
    state = Path(config.checkpoints_base).resolve().parent
    folder = str(state / "vllm-adapters")
    os.environ[KEY] = os.environ.get(KEY) or own_key(state)  # empty, it would be no header that can be sent
    if config.external_inference_url:
        urls = urls_of(config.external_inference_url)
        config.external_inference_url = None  # skyrl's own client stays away
        os.environ[handover.FOLDER] = str(Path(folder, "handed"))  # those servers can read it
        yield Wiring(urls, os.environ[KEY], folder, os.environ[handover.FOLDER], running_version(urls[0]), None)
        return
    plan = make_plan(args, state, marker)
    os.environ[handover.FOLDER] = plan.handed
    plan.status.unlink(missing_ok=True)
    command = [sys.executable, sampler.__file__, str(os.getpid()), sampler.to_argument(plan)]
    supervisor, stopping = subprocess.Popen(command, stdin=subprocess.DEVNULL), threading.Event()
    threading.Thread(target=end_with, args=(supervisor, stopping), daemon=True).start()
    try:
        yield Wiring(plan.urls, os.environ[KEY], folder, plan.handed, installed_version(), plan.status)
    finally:
        stopping.set()
        supervisor.terminate()
        try:
            supervisor.wait(STOP_SEC)
        except subprocess.TimeoutExpired:
            supervisor.kill()
        shutil.rmtree(plan.handed, ignore_errors=True)  # a supervisor that was killed has left it


def own_key(state: Path) -> str:
    """The same at each start: vLLM finds what it has compiled by its environment, in which the key is."""
    file = state / "vllm_key"
    if not file.exists() or not file.read_text():
        file.touch(0o600)
        file.write_text(secrets.token_hex(16))
    return file.read_text()


def end_with(supervisor: "subprocess.Popen[bytes]", stopping: threading.Event) -> None:
    """Waits, and ends this process with the supervisor: without it vLLM, once ended, would not be started again."""
    status = supervisor.wait()
    if not stopping.is_set():
        say(f"error: server/sampler.py, which keeps vLLM running, ended with status {status}")
        os.kill(os.getpid(), signal.SIGTERM)


def urls_of(text: str) -> tuple[str, ...]:
    """Of VLLM_URLS. Exits with one line when one is no URL."""
    urls = tuple(url.strip().rstrip("/") for url in text.split(","))
    if wrong := [url for url in urls if not url.startswith(("http://", "https://"))]:
        sys.exit(f"VLLM_URLS={text}: {wrong[0] or 'an empty one'}: needs http://HOST:PORT, with commas between")
    return urls


def check(args: argparse.Namespace) -> None:
    """Exits with one line for what vLLM cannot do here."""
    if "vllm" not in args.repairs:
        sys.exit("--sampler vllm: needs the repair vllm; set SKYRL_TX_REPAIRS=all or SAMPLER=jax")


def check_flags(text: str) -> None:
    """Exits with one line for VLLM_FLAGS that no vLLM of this server can start with."""
    try:
        words = [part for word in shlex.split(text) for part in word.split("=", 1)]
    except ValueError as error:
        sys.exit(f"VLLM_FLAGS={text}: {error}")
    for name, value in pairwise([*words, ""]):
        if name.replace("_", "-") in PARALLEL and value != "1":
            sys.exit(f"VLLM_FLAGS: {name} {value}: each vLLM has one GPU; VLLM_GPUS=1,2 starts one on each of two GPUs")


def make_plan(args: argparse.Namespace, state: Path, marker: Path) -> sampler.Plan:
    """How server/sampler.py starts vLLM. Exits with one line if it cannot."""
    from skyrl.tinker import api

    from repairs import positions
    from repairs.api_limits import context_limit, model_config

    check_flags(args.vllm_flags)
    if not sampler.PYTHON.exists():
        sys.exit("SAMPLER=vllm: the sampler's environment server/vllm/.venv is missing; run scripts/setup.sh --sampler")
    own = gpus_of(args)
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu"
    if own and on_cpu:
        sys.exit(f"VLLM_GPUS={args.vllm_gpus}: this server runs on the CPU; unset VLLM_GPUS")
    if args.vllm_cpu_replicas < 1 or (args.vllm_cpu_replicas > 1 and not on_cpu):
        sys.exit(
            f"VLLM_CPU_REPLICAS={args.vllm_cpu_replicas}: 1 or more, and more than 1 only on a CPU; VLLM_GPUS=1,2 "
            "makes a replica on each GPU"
        )
    shared = shares_gpu(args)
    values: dict[str, Any] = model_config()
    return sampler.Plan(
        model=args.base_model,
        dtype=values.get("dtype") or values.get("torch_dtype") or "float32",
        context=context_limit(),
        rank=api.app.state.engine_config.backend_config.get("max_lora_rank", 32),
        ports=free_ports(max(len(own), args.vllm_cpu_replicas)),
        gpus=own if own or on_cpu else (first_gpu(),),
        memory=args.vllm_mem or OWN_MEMORY,
        folder=str(state),
        max_deaths=args.vllm_max_deaths,
        hang_sec=args.vllm_hang_sec or (HANG_CPU_SEC if on_cpu else HANG_SEC),
        log_mb=args.log_mb,
        positions=positions.parameters_of(values, context_limit()) if positions.is_ours(values) else {},
        switches=switches_for(values, on_cpu),
        after=str(marker) if shared else "",
        flags=args.vllm_flags,
        handed=str(handover.make_folder(state)),
    )


def switches_for(values: dict[str, Any], on_cpu: bool) -> tuple[str, ...]:
    """For a config.json, text part included: without images; on a CPU, no prefixes of linear attention (Qwen3.5).

    vLLM keeps such prefixes only where it splits prompts, which server/sampler.py switches off on a CPU.
    """
    found = ("--language-model-only",) if "vision_config" in values else ()
    return (*found, "--no-enable-prefix-caching") if on_cpu and "linear_key_head_dim" in values else found


def gpus_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Of --vllm-gpus."""
    return tuple(gpu.strip() for gpu in args.vllm_gpus.split(",") if gpu.strip())


def shares_gpu(args: argparse.Namespace) -> bool:
    """Whether trainer and vLLM have a GPU in common. Without --vllm-gpus that is the trainer's first."""
    own, visible = gpus_of(args), os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return os.environ.get("JAX_PLATFORMS") != "cpu" and (not own or bool(set(own) & set(visible)))


def first_gpu() -> str:
    """As CUDA_VISIBLE_DEVICES names it: the trainer's first, so that both are on the same one."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def free_ports(count: int) -> tuple[int, ...]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(one.getsockname()[1] for one in sockets)
    finally:
        for one in sockets:
            one.close()


def installed_version() -> str:
    """Of vLLM in server/vllm/.venv: vllm, or vllm-cpu."""
    found = sampler.PYTHON.parents[1].glob("lib/python3.*/site-packages/vllm*.dist-info")
    versions = [path.name.removesuffix(".dist-info").split("-") for path in found]
    return next((number for name, number in versions if name in ("vllm", "vllm_cpu")), "unknown")


def running_version(url: str) -> str:
    """Of a vLLM server that runs."""
    try:
        with urllib.request.urlopen(f"{url}/version", timeout=5) as answer:
            return str(json.load(answer)["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"
