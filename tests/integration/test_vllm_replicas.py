"""Two real vLLM servers on the CPU: prefix affinity, adapters on both, one killed with requests in flight. At night."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator

import httpx
import pytest
import tinker

from tests.conftest import MODEL
from tests.support.engine_parts import DATA, adapters, sampler, step
from tests.support.server_parts import Raw, awaited
from tests.support.small_server import Server
from tests.support.vllm_server import sampling, settled, until_ready, vllm_process, vllm_server

pytestmark = pytest.mark.nightly
KEY = "tests-key"  # of both vLLM servers
CACHED = 0.85  # of the prompts of the second turns, in blocks of 128 tokens
TRIALS = 6


@pytest.fixture(scope="module")
def server(server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with vllm_server(tmp_path_factory.mktemp("replicas"), VLLM_CPU_REPLICAS="2", VLLM_API_KEY=KEY) as server:
        yield server


def urls(server: Server) -> list[str]:
    return [one["url"] for one in json.loads((server.state / "vllm.json").read_text())]


def counted(server: Server, name: str) -> list[float]:
    """A counter of vLLM's, for each replica."""
    pages = [httpx.get(f"{url}/metrics", timeout=30).text for url in urls(server)]
    return [sum(float(n) for n in re.findall(rf"^vllm:{name}(?:\{{.*\}})? (\S+)$", page, re.M)) for page in pages]


def adapters_of(url: str) -> list[str]:
    models = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}, timeout=30).json()
    return [one["id"] for one in models["data"]]


async def test_the_second_turn_of_a_trial_goes_where_its_first_was(server: Server) -> None:
    async with adapters(server.url, MODEL) as (service, client):
        saved = await sampler(service, client, "turns")
        params = tinker.SamplingParams(max_tokens=32, temperature=1.0)
        prompts = [[5 + (7 * i + 13 * trial) % 200 for i in range(1500)] for trial in range(TRIALS)]

        async def turn(prompt: list[int]) -> list[int]:
            answer = await saved.sample(tinker.ModelInput.from_ints(prompt), 1, params)
            return [*prompt, *answer.sequences[0].tokens, *range(60, 92)]

        prompts = await asyncio.gather(*map(turn, prompts))
        first = counted(server, "prompt_tokens_total")
        before = sampling(server.url)
        await asyncio.gather(*map(turn, prompts))
        after = sampling(server.url)
    asked, cached = (after[name] - before[name] for name in ("prompt_tokens", "cached_tokens"))
    print(f"prompt tokens of turn 1 by replica {first}; turn 2: {cached} of {asked} from the cache")
    assert all(first), "both replicas sample"
    assert asked == sum(map(len, prompts)) and cached >= CACHED * asked


async def test_a_sampler_is_on_both_before_its_save_is_answered(server: Server) -> None:
    async with adapters(server.url, MODEL) as (_, client):
        await client.save_weights_for_sampler("both")
        for url in urls(server):
            assert [name for name in adapters_of(url) if name.startswith(f"{client.model_id}_both_")]


async def test_the_other_replica_answers_what_a_killed_one_computed(server: Server) -> None:
    """The samples of a seed are those of before, also from the other replica, and from the killed one's next life."""
    async with adapters(server.url, MODEL) as (service, client):
        await step(client, DATA)
        await sampler(service, client, "kept")
        raw = Raw(server.url, MODEL)
        path = f"tinker://{client.model_id}/sampler_weights/kept"
        prompt = {"chunks": [{"type": "encoded_text", "tokens": list(range(5, 25))}]}

        def ask() -> list[httpx.Response]:
            settings = [{"max_tokens": 400, "seed": seed} for seed in range(8)]
            return [raw.post("asample", model_path=path, prompt=prompt, sampling_params=one) for one in settings]

        expected = [settled(raw, promise).content for promise in ask()]
        promises = ask()
        awaited(lambda: min(counted(server, "num_requests_running")) >= 1 or None)
        os.kill(vllm_process(server.state, engine=True, index=0), signal.SIGKILL)
        assert [settled(raw, promise).content for promise in promises] == expected
        print(f"all {len(promises)} answered; replicas: {sampling(server.url)['replicas']}")
        until_ready(server.url, 2)
        assert [settled(raw, promise).content for promise in ask()] == expected
        used = counted(server, "generation_tokens_total")
        print(f"after the restart, tokens by replica: {used}")
        assert all(used), "the restarted replica samples again, after the adapter was loaded anew"
