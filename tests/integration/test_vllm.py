"""SAMPLER=vllm with the real vLLM on the CPU: every promise of the server. At night. Kills: test_vllm_kills.py."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tinker.proto.response_conv import deserialize_sample_response

from harbortrainer.cli.main import main
from tests.conftest import MODEL
from tests.support.conformance import conforms
from tests.support.engine_parts import ADAM, DATA, STILL, adapters, datum, sampler, step
from tests.support.server_parts import Raw, awaited
from tests.support.small_server import Server
from tests.support.vllm_server import CLOSE, WRONG, sampling, settled, until_ready, vllm_process, vllm_server

pytestmark = pytest.mark.nightly
CACHED = 0.85  # of turn 2's prompt, in blocks of 128 tokens
PUBLISH_SEC = 2.0  # from save to the first token of the new weights


@pytest.fixture(scope="module")
def server(server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with vllm_server(tmp_path_factory.mktemp("vllm")) as server:
        yield server


def test_conformance(server: Server) -> None:
    conforms(server.url)
    assert sampling(server.url)["prompt_tokens"] > 0, "vLLM has sampled"


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


async def test_samples_in_one_batch_are_each_of_their_own_weights(server: Server) -> None:
    """Two adapters fill vLLM's memory of a batch; its CPU build then gives the base model the last one's weights."""
    prompt, params = list(range(5, 25)), tinker.SamplingParams(max_tokens=100, temperature=1.0)
    async with adapters(server.url, MODEL) as (service, client):
        samplers = [await service.create_sampling_client(base_model=str(MODEL))]
        for name in ("batch-1", "batch-2"):
            await step(client, DATA)
            samplers.append(await sampler(service, client, name))
        asked = [one.sample(tinker.ModelInput.from_ints(prompt), 2, params) for one in samplers * 2]
        for one, answer in zip(samplers * 2, await asyncio.gather(*asked), strict=True):
            for sample in answer.sequences:
                text = tinker.ModelInput.from_ints([*prompt, *sample.tokens])
                scored = np.array((await one.compute_logprobs(text))[len(prompt) :], float)
                assert np.abs(scored - np.asarray(sample.logprobs, float)).max() <= WRONG


async def test_the_second_turn_reads_its_prompt_from_the_cache(server: Server) -> None:
    async with adapters(server.url, MODEL) as (service, client):
        saved = await sampler(service, client, "turns")
        prompt = [5 + (7 * i) % 200 for i in range(1500)]
        params = tinker.SamplingParams(max_tokens=32, temperature=1.0)
        one = (await saved.sample(tinker.ModelInput.from_ints(prompt), 1, params)).sequences[0]
        before = sampling(server.url)
        prompt += [*one.tokens, *range(60, 92)]
        await saved.sample(tinker.ModelInput.from_ints(prompt), 1, params)
    after = sampling(server.url)
    asked = after["prompt_tokens"] - before["prompt_tokens"]
    cached = after["cached_tokens"] - before["cached_tokens"]
    print(f"turn 2: {cached} of {asked} prompt tokens from the cache")
    assert asked == len(prompt) and cached >= CACHED * asked


async def test_new_weights_are_sampled_within_two_seconds_of_their_save(server: Server) -> None:
    """The time of the second save and later: the first compiles the trainer's programs."""
    took = []
    async with adapters(server.url, MODEL) as (service, client):
        for number in range(6):
            await step(client, DATA)
            began = time.monotonic()
            saved = await sampler(service, client, f"new-{number}")
            await saved.sample(tinker.ModelInput.from_ints(list(range(40, 65))), 1, tinker.SamplingParams(max_tokens=1))
            took.append(time.monotonic() - began)
    print(f"save to first token: {[round(seconds, 2) for seconds in took]} s")
    assert float(np.median(took[1:])) <= PUBLISH_SEC


def test_prompts_are_scored_while_others_are(server: Server) -> None:
    """With more than one new token vLLM scores the prompt; two such requests at once ended vLLM's engine."""
    raw = Raw(server.url, MODEL)
    model_id = raw.adapter()
    raw.settle(raw.post("save_weights_for_sampler", model_id=model_id, path="scored")).raise_for_status()
    path = f"tinker://{model_id}/sampler_weights/scored"
    prompt = {"chunks": [{"type": "encoded_text", "tokens": list(range(5, 30))}]}
    settings = {"prompt": prompt, "prompt_logprobs": True, "sampling_params": {"max_tokens": 16, "seed": 1}}
    before = vllm_process(server.state, engine=True)
    asked = [{"model_path": path}, {"base_model": str(MODEL)}] * 8
    promises = [raw.post("asample", **settings, **of) for of in asked]
    scores = [deserialize_sample_response(settled(raw, promise).content).prompt_logprobs for promise in promises]
    raw.unload()
    assert all(one is not None and len(one) == 25 and one[0] is None for one in scores)
    # a fresh adapter is the base model
    values = np.array([one[1:] for one in scores if one is not None], float)
    assert np.abs(values - values[0]).max() <= CLOSE
    assert vllm_process(server.state, engine=True) == before


def test_the_doctor_finds_what_it_finds_of_the_jax_sampler(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    assert main(["doctor", "server", server.url, f"json={path}"]) == 0
    rows = {row["what"]: row for row in json.loads(path.read_text())["rows"]}
    assert rows["sampler"]["value"].startswith("vllm ")
    assert {row["verdict"] for row in rows.values()} == {"same", "info"}, rows


async def test_a_kill_of_vllm_leaves_training_alone(server: Server) -> None:
    async with adapters(server.url, MODEL) as (_, client):
        await step(client, DATA)
        before = await step(client, DATA, adam=STILL)
        os.kill(vllm_process(server.state, engine=False), signal.SIGKILL)
        assert await step(client, DATA, adam=STILL) == before
        await step(client, DATA, adam=ADAM)
    until_ready(server.url)


def test_stopping_the_server_stops_vllm(server: Server) -> None:
    """The last test: it starts no server again."""
    pid = vllm_process(server.state, engine=False)
    server.stop()
    awaited(lambda: not Path(f"/proc/{pid}").exists() or None)
