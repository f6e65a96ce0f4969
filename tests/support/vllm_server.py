"""A server with SAMPLER=vllm and the real vLLM, its processes, and requests that wait for vLLM's restarts."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import MODEL, succeed
from tests.support.server_parts import Raw, awaited
from tests.support.small_server import Server

CLOSE = 5e-5  # nats; the largest difference between vLLM and the trainer in float32 was 2.2e-5
WRONG = 1e-3  # nats: the log-probabilities are of other weights; rounding reaches 6e-5 for tokens that are unlikely
START_SEC = 900.0


@contextmanager
def vllm_server(state: Path, model: Path | str = MODEL, **settings: str) -> Iterator[Server]:
    succeed("scripts/setup.sh", "--sampler", timeout_sec=1800)
    always = {"SAMPLER": "vllm", "VLLM_MAX_DEATHS": "1000", "SESSION_TIMEOUT": "600"}
    server = Server(state, model=model, **always | settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def sampling(url: str) -> dict[str, Any]:
    """What healthz says of the sampler."""
    return httpx.get(f"{url}/api/v1/healthz", timeout=30).json()["sampler"]


def until_ready(url: str, replicas: int = 1) -> None:
    awaited(lambda: sampling(url)["replicas"] == ["ready"] * replicas or None, START_SEC)


def vllm_process(state: Path, *, engine: bool, index: int = 0) -> int:
    """vLLM's API process or, where one runs, its engine; of the replica with this index."""
    port = json.loads((state / "vllm.json").read_text())[index]["url"].rpartition(":")[2]
    query = ["pgrep", "-f", f"sampler_cpu.py --model {MODEL} .*--port {port} "]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    [api] = [pid for pid in map(int, found) if os.getpgid(pid) == pid]
    group = subprocess.run(["pgrep", "-g", str(api), "-f", "EngineCore"], capture_output=True, text=True, check=False)
    engines = [int(pid) for pid in group.stdout.split()]
    return engines[0] if engine and engines else api


def settled(raw: Raw, promise: httpx.Response) -> httpx.Response:
    """The answer or the failure, however long vLLM starts."""
    request_id = promise.raise_for_status().json()["request_id"]
    return awaited(lambda: _answer(raw, request_id), START_SEC)


def _answer(raw: Raw, request_id: str) -> httpx.Response | None:
    try:
        answer = raw.http.post("/retrieve_future", json={"request_id": request_id})
    except httpx.TransportError:
        return None
    return None if answer.status_code == 408 else answer
