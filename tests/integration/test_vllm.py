"""SAMPLER=vllm with the real vLLM on the CPU: every promise of the server, and kills of either process. At night.

VLLM_KILLS: how many kills (default 3; 30 for a release).
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tinker

from tests.conftest import MODEL, ROOT, succeed
from tests.support.engine_parts import ADAM, DATA, STILL, adapters, datum, sampler, step
from tests.support.server_parts import Raw, awaited
from tests.support.small_server import Server

pytestmark = pytest.mark.nightly
CLOSE = 5e-5  # nats; the largest difference seen was 2.2e-5
CACHED = 0.85  # of turn 2's prompt, in blocks of 128 tokens
START_SEC = 900.0


@pytest.fixture(scope="module")
def server(server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    succeed("scripts/setup.sh", "--sampler", timeout_sec=1800)
    settings = {"SAMPLER": "vllm", "VLLM_MAX_DEATHS": "1000", "SESSION_TIMEOUT": "600"}
    server = Server(tmp_path_factory.mktemp("vllm"), **settings)
    server.start()
    yield server
    server.stop()


def sampling(server: Server) -> dict[str, Any]:
    return httpx.get(f"{server.url}/api/v1/healthz", timeout=600).json()["sampler"]


def test_conformance(server: Server) -> None:
    env = os.environ | {"TINKER_CONFORMANCE_URL": server.url}
    command = [sys.executable, "-m", "pytest", "tests/conformance", "-q", "-o", "addopts="]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stdout[-5000:]
    assert sampling(server)["prompt_tokens"] > 0, "vLLM has sampled"


async def apart(client: Any, saved: tinker.SamplingClient) -> float:
    """The largest difference of sampled logprobs from the trainer's; of 12 samples of 16 tokens, at 3 settings."""
    largest = 0.0
    prompt = list(range(40, 65))
    for temperature, top_p in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.8)):
        params = tinker.SamplingParams(max_tokens=16, temperature=temperature, top_p=top_p, seed=3)
        answer = await saved.sample(tinker.ModelInput.from_ints(prompt), 4, params)
        texts = [[*prompt, *one.tokens] for one in answer.sequences]
        output = await client.forward([datum(text) for text in texts], "cross_entropy")
        for one, result in zip(answer.sequences, output.loss_fn_outputs, strict=True):
            trained = np.asarray(result["logprobs"].data, float)[-len(one.tokens) :]
            largest = max(largest, float(np.abs(trained - np.asarray(one.logprobs, float)).max()))
    return largest


async def test_sampled_logprobs_are_the_trainers_also_after_a_name_is_saved_again(server: Server) -> None:
    async with adapters(server.url, MODEL) as (service, client):
        await step(client, DATA)
        saved = await sampler(service, client, "again")
        first = await apart(client, saved)
        await step(client, DATA)
        rest = tinker.RestClient(base_url=server.url, api_key="tml-dummy")
        await rest.delete_checkpoint_from_tinker_path(f"tinker://{client.model_id}/sampler_weights/again")
        second = await apart(client, await sampler(service, client, "again"))
    print(f"sampler against trainer: {first:.2g} and, saved again, {second:.2g} nats")
    assert max(first, second) <= CLOSE


async def test_the_second_turn_reads_its_prompt_from_the_cache(server: Server) -> None:
    async with adapters(server.url, MODEL) as (service, client):
        saved = await sampler(service, client, "turns")
        prompt = [5 + (7 * i) % 200 for i in range(1500)]
        params = tinker.SamplingParams(max_tokens=32, temperature=1.0)
        one = (await saved.sample(tinker.ModelInput.from_ints(prompt), 1, params)).sequences[0]
        before = sampling(server)
        prompt += [*one.tokens, *range(60, 92)]
        await saved.sample(tinker.ModelInput.from_ints(prompt), 1, params)
    after = sampling(server)
    asked = after["prompt_tokens"] - before["prompt_tokens"]
    cached = after["cached_tokens"] - before["cached_tokens"]
    print(f"turn 2: {cached} of {asked} prompt tokens from the cache")
    assert asked == len(prompt) and cached >= CACHED * asked


def vllm_process(server: Server, *, engine: bool) -> int:
    """vLLM's API process or, where it is there, its engine."""
    query = ["pgrep", "-f", f"vllm.entrypoints.openai.api_server --model {MODEL} .*"]
    state = f"{server.state}/"
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    mine = [int(pid) for pid in found if state in Path(f"/proc/{pid}/fd/1").readlink().as_posix()]
    [api] = [pid for pid in mine if os.getpgid(pid) == pid]
    group = subprocess.run(["pgrep", "-g", str(api), "-f", "EngineCore"], capture_output=True, text=True, check=False)
    engines = [int(pid) for pid in group.stdout.split()]
    return engines[0] if engine and engines else api


def in_flight(raw: Raw, model_id: str, seed: int) -> list[httpx.Response]:
    """Promises: seeded of the sampler, unseeded of it, and of the base model."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": list(range(5, 25))}]}
    path = f"tinker://{model_id}/sampler_weights/kept"

    def ask(**params: Any) -> httpx.Response:
        settings = {"max_tokens": 1500, "temperature": 1.0} | params
        return raw.post("asample", model_path=path, prompt=prompt, sampling_params=settings)

    return [ask(seed=seed), ask(), ask(seed=seed), raw.sample(list(range(5, 25)), max_tokens=1500)]


def settled(raw: Raw, promise: httpx.Response) -> bytes:
    """The answer, however long vLLM starts."""
    request_id = promise.raise_for_status().json()["request_id"]
    answer = awaited(lambda: answered(raw, request_id), START_SEC)
    assert answer.status_code == 200, answer.text
    return answer.content


def answered(raw: Raw, request_id: str) -> httpx.Response | None:
    try:
        answer = raw.http.post("/retrieve_future", json={"request_id": request_id})
    except httpx.TransportError:
        return None
    return None if answer.status_code == 408 else answer


def test_every_request_is_answered_whatever_is_killed(server: Server) -> None:
    """The seeded samples stay the same, so they are of the same weights; a restored state is the one that was saved."""
    raw = Raw(server.url, MODEL)
    model_id = raw.adapter()
    raw.settle(raw.post("save_weights_for_sampler", model_id=model_id, path="kept")).raise_for_status()
    file = next(server.state.glob("checkpoints/*/sampler_weights/kept.tar.gz"))
    weights = file.read_bytes()
    expected = settled(raw, in_flight(raw, model_id, 7)[0])
    for kill in range(int(os.environ.get("VLLM_KILLS", "3"))):
        promises = in_flight(raw, model_id, 7)
        awaited(lambda: sampling(server)["in_flight"] or None)
        what = ("vLLM's engine", "the server", "vLLM's API", "both")[kill % 4]
        if what in ("vLLM's engine", "vLLM's API", "both"):
            os.kill(vllm_process(server, engine=what == "vLLM's engine"), signal.SIGKILL)
        if what in ("the server", "both"):
            server.kill()
            server.start()
        answers = [settled(raw, promise) for promise in promises]
        assert answers[0] == answers[2] == expected, f"another sample after a kill of {what}"
        assert file.read_bytes() == weights
        awaited(lambda: sampling(server)["replicas"] == ["ready"] or None, START_SEC)
        print(f"kill {kill + 1}, {what}: {len(answers)} of {len(promises)} answered", flush=True)


async def test_a_kill_of_vllm_leaves_training_alone(server: Server) -> None:
    async with adapters(server.url, MODEL) as (_, client):
        await step(client, DATA)
        before = await step(client, DATA, adam=STILL)
        os.kill(vllm_process(server, engine=False), signal.SIGKILL)
        assert await step(client, DATA, adam=STILL) == before
        await step(client, DATA, adam=ADAM)
    awaited(lambda: sampling(server)["replicas"] == ["ready"] or None, START_SEC)


def test_stopping_the_server_stops_vllm(server: Server) -> None:
    """The last test: it starts no server again."""
    pid = vllm_process(server, engine=False)
    server.stop()
    awaited(lambda: not Path(f"/proc/{pid}").exists() or None)
