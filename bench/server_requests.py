"""Requests a second that the server passes on to vLLM, and the CPU of one: what bounds short turns on a fast GPU.

    python -m bench.server_requests [--requests 600] [--at-once 80] [--prompt 1000]

The API, its database and the SDK are real; vLLM is a fake one in this process that answers at once with 48 tokens.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tinker
from tinker import types

from tests.conftest import MODEL
from tests.support.fake_vllm import KEY, FakeVllm
from tests.support.processes import cpu_seconds
from tests.support.small_server import Server, processes_of

ANSWER = 48  # tokens
WARM = 20  # requests before those that count
MOST_PROMPT, MOST_ANSWER = 4000, 64


def answer(body: dict[str, Any]) -> None:
    for choice in body["choices"]:
        choice["token_ids"], choice["logprobs"] = [7] * ANSWER, {"token_logprobs": [-0.5] * ANSWER}


async def sample(client: tinker.SamplingClient, n_prompt: int, number: int) -> float:
    """Seconds of one request."""
    prompt = types.ModelInput.from_ints([1 + number * place % 200 for place in range(n_prompt)])
    params = types.SamplingParams(max_tokens=MOST_ANSWER, temperature=1.0, stop=[2])
    began = time.monotonic()
    await client.sample_async(prompt=prompt, num_samples=1, sampling_params=params)
    return time.monotonic() - began


async def measure(server: Server, requests: int, at_once: int, n_prompt: int) -> None:
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-dummy-key-123456")
    training = await service.create_lora_training_client_async(base_model=str(MODEL), rank=8)
    client = await training.save_weights_and_get_sampling_client_async()
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> float:
        async with places:
            return await sample(client, n_prompt, number)

    await asyncio.gather(*map(one, range(WARM)))
    names = {min(processes_of(server.state)): "API", os.getpid(): "SDK and the fake vLLM"}
    before, began = {pid: cpu_seconds(pid) for pid in names}, time.monotonic()
    seconds = await asyncio.gather(*map(one, range(requests)))
    wall = time.monotonic() - began
    print(f"{requests / wall:.0f} requests a second, {at_once} at once; median {statistics.median(seconds):.2f} s")
    for pid, name in names.items():
        print(f"{(cpu_seconds(pid) - before[pid]) / requests * 1000:.1f} ms CPU a request: {name}")


async def run(args: argparse.Namespace) -> None:
    fake = FakeVllm(str(MODEL))
    fake.answer = answer
    await fake.start()
    settings = {"SAMPLER": "vllm", "VLLM_URLS": fake.url, "VLLM_API_KEY": KEY, "SESSION_TIMEOUT": "600"}
    with tempfile.TemporaryDirectory() as state:
        server = Server(Path(state), **settings)
        await asyncio.to_thread(server.start)
        try:
            await measure(server, args.requests, args.at_once, args.prompt)
        finally:
            await asyncio.to_thread(server.stop)
            await fake.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--at-once", type=int, default=80)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens")
    args = parser.parse_args()
    if args.prompt > MOST_PROMPT:
        parser.error(f"--prompt {args.prompt}: at most {MOST_PROMPT} tokens fit into the model's context")
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
