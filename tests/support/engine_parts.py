"""Adapters, data and steps for tests of the server's engine."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import tinker

TOKENS = [list(range(5, 25)), list(range(40, 64)), list(range(90, 108)), list(range(200, 225))]  # one length bucket
ADAM = tinker.AdamParams(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-12)
STILL = tinker.AdamParams(learning_rate=0.0)
SAMPLING = tinker.SamplingParams(max_tokens=8, temperature=1.0, seed=1)
PROMPT = tinker.ModelInput.from_ints(TOKENS[0])


@contextlib.asynccontextmanager
async def adapters(url: str, model: Path, count: int = 1) -> AsyncIterator[Any]:
    """Service client and `count` equal fresh adapters; their slots are free again afterwards."""
    service = tinker.ServiceClient(base_url=url, api_key="tml-dummy")
    clients: list[tinker.TrainingClient] = []
    try:
        for _ in range(count):
            clients.append(await service.create_lora_training_client(str(model), rank=8, seed=1))
        yield service, *clients
    finally:
        for client in clients:
            await unload(url, client)
        await service.close("success")  # else its session beats until the process ends


@contextlib.asynccontextmanager
async def every_slot(url: str, model: Path, *, but: int = 0) -> AsyncIterator[None]:
    """No slot of the server is free within the block, `but` so many, whoever had some before."""
    service = tinker.ServiceClient(base_url=url, api_key="tml-dummy")
    clients: list[tinker.TrainingClient] = []
    try:
        with contextlib.suppress(tinker.TinkerError, ValueError):  # how the SDK reports that no slot is free
            while True:
                clients.append(await service.create_lora_training_client(str(model), rank=8, seed=1))
        assert clients
        for _ in range(but):
            await unload(url, clients.pop())
        yield
    finally:
        for client in clients:
            await unload(url, client)
        await service.close("success")


async def unload(url: str, client: tinker.TrainingClient) -> None:
    """Returns when the engine has done it."""
    await raw(url, "unload_model", {"model_id": client.model_id, "type": "unload_model"})


async def raw(url: str, name: str, body: dict[str, Any]) -> None:
    """A request without the SDK, which retries for minutes; waits for its answer, whatever that is."""
    async with httpx.AsyncClient(timeout=600) as http:
        promise = (await http.post(f"{url}/api/v1/{name}", json=body)).raise_for_status().json()
        await http.post(f"{url}/api/v1/retrieve_future", json={"request_id": promise["request_id"]})


def datum(tokens: list[int], weight: float = 1.0) -> tinker.Datum:
    inputs = {"target_tokens": np.array(tokens[1:]), "weights": np.full(len(tokens) - 1, weight, np.float32)}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def extreme_datum(tokens: list[int]) -> tinker.Datum:
    """All its numbers are finite, but the ratio exp(log-probability - sampled one) is not."""
    n = len(tokens) - 1
    inputs = {
        "target_tokens": np.array(tokens[1:]),
        "logprobs": np.full(n, -1e4, np.float32),
        "advantages": np.ones(n, np.float32),
    }
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


DATA = [datum(tokens) for tokens in TOKENS]


async def loss(client: tinker.TrainingClient, data: list[tinker.Datum] = DATA) -> float:
    """Summed negative log-likelihood; from the outputs, since the stock server reports no metric."""
    output = await client.forward(data, "cross_entropy")
    return -sum(float(np.sum(np.asarray(o["logprobs"].data))) for o in output.loss_fn_outputs)


async def step(client: tinker.TrainingClient, *batches: list[tinker.Datum], adam: tinker.AdamParams = ADAM) -> float:
    """One forward_backward a batch, then a step. Returns the reported gradient norm."""
    passes = [client.forward_backward(batch, "cross_entropy") for batch in batches]
    stepping = client.optim_step(adam)
    for output in passes:
        await output
    metrics = (await stepping).metrics or {}
    return metrics["skyrl.ai/grad_norm"]


async def sampler(service: tinker.ServiceClient, client: tinker.TrainingClient, name: str) -> tinker.SamplingClient:
    saved = await client.save_weights_for_sampler(name)
    return await service.create_sampling_client(model_path=saved.path)


async def prompt_logprobs(client: tinker.SamplingClient) -> list[float]:
    return [value for value in await client.compute_logprobs(PROMPT) if value is not None]
