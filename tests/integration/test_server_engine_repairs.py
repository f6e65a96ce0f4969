"""Repairs of the server's engine that the conformance tests do not show."""

import asyncio
import contextlib
import json
import math

import pytest
import tinker

from tests.support.engine_parts import (
    ADAM,
    DATA,
    PROMPT,
    SAMPLING,
    TOKENS,
    adapters,
    extreme_datum,
    loss,
    prompt_logprobs,
    raw,
    sampler,
    step,
)
from tests.support.engine_programs import printed


@pytest.mark.nightly
async def test_more_samplers_than_slots_at_once(server_url, tiny_model_dir):
    async with adapters(server_url, tiny_model_dir) as (service, client):
        clients, expected = [], []
        for number in range(4):
            await step(client, DATA)
            clients.append(await sampler(service, client, f"n{number}"))
            expected.append(await prompt_logprobs(clients[-1]))
        again = await asyncio.gather(*(prompt_logprobs(c) for c in clients))
    assert len({tuple(values) for values in expected}) == 4
    for values, first in zip(again, expected, strict=True):
        assert values == pytest.approx(first, abs=1e-5)


async def test_deleted_weights_are_never_sampled(server_url, tiny_model_dir):
    async with adapters(server_url, tiny_model_dir) as (service, client):
        old = await sampler(service, client, "same")
        before = await prompt_logprobs(old)
        path = f"tinker://{client.model_id}/sampler_weights/same"
        await tinker.RestClient(base_url=server_url, api_key="tml-dummy").delete_checkpoint_from_tinker_path(path)
        with pytest.raises(Exception, match=r"(?i)gone|not found"):
            await old.sample(PROMPT, 1, SAMPLING)
        await step(client, DATA)
        new = await sampler(service, client, "same")
        assert await prompt_logprobs(new) != pytest.approx(before, abs=1e-3)


async def test_a_request_that_overflows_fails_alone(server_url, tiny_model_dir):
    async with adapters(server_url, tiny_model_dir, 2) as (_, client, twin):
        good = client.forward_backward(DATA, "cross_entropy")
        bad = client.forward_backward([extreme_datum(TOKENS[0])], "importance_sampling")
        await good
        with pytest.raises(Exception, match="not finite"):
            await bad
        norm = ((await client.optim_step(ADAM)).metrics or {})["skyrl.ai/grad_norm"]
        assert norm == pytest.approx(await step(twin, DATA), rel=1e-4), "the bad request added nothing"
        assert await loss(client) == pytest.approx(await loss(twin), rel=1e-4)


async def test_a_step_to_weights_that_are_not_finite_is_refused(server_url, tiny_model_dir):
    huge = tinker.AdamParams(learning_rate=1e39, beta1=0.9, beta2=0.95, eps=1e-12)
    async with adapters(server_url, tiny_model_dir, 2) as (_, client, twin):
        with pytest.raises(Exception, match="not finite"):
            await step(client, DATA, adam=huge)
        norms = [await step(each, DATA) for each in (client, twin)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-6), "weights, moments and gradient are as before"
        assert await loss(client) == await loss(twin)


async def spoil(url: str, client: tinker.TrainingClient) -> None:
    """A step on a gradient that is not finite, as far as the server takes it."""
    with contextlib.suppress(tinker.TinkerError, ValueError):
        await client.forward_backward([extreme_datum(TOKENS[0])], "importance_sampling")
    adam = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
    await raw(url, "optim_step", {"model_id": client.model_id, "adam_params": adam})


@pytest.mark.parametrize(("server", "isolated"), [("server_url", True), ("stock_url", False)])
async def test_one_adapter_never_spoils_another(server, isolated, request, tiny_model_dir):
    url = request.getfixturevalue(server)
    async with adapters(url, tiny_model_dir, 2) as (_, spoilt, other):
        before = await loss(other)
        await spoil(url, spoilt)
        after = await loss(other)
    assert after == before if isolated else math.isnan(after)


IN_PROCESS = """
import importlib, json, sys
from types import SimpleNamespace
import jax.numpy as jnp
import numpy as np
from skyrl.backends import jax as backend
from skyrl.tinker import engine, types
from skyrl.tx.layers import layernorm
from skyrl.tx.models import qwen3
from skyrl.tx.utils import models

class Engine(engine.TinkerEngine):
    def __init__(self):
        self.results = {}
    def _filter_valid_requests(self, requests):
        return {}, requests
    def _complete_futures(self, results):
        self.results |= results

def process(requests):
    if "bad" in requests:
        raise KeyError("target_tokens")
    return {name: types.UnloadModelOutput(model_id=name, status="done") for name in requests}

def failed(results):
    return [name for name, result in results.items() if isinstance(result, types.ErrorResponse)]

def batch():
    one = Engine()
    one.process_batch_requests({name: ("m", None) for name in ("first", "bad", "last")}, process, "sample")
    return failed(one.results)

def expert_shapes(adapters=3, experts=8, width=16, rank=4, used=2):
    path = ("model", "layers", "0", "mlp", "experts", "up_proj")
    arrays = {"lora_A": (adapters, experts, width, rank), "lora_B": (adapters, experts, rank, width)}
    slices = {name: models.get_adapter_slice((*path, name), 1, used) for name in arrays}
    return [np.zeros(shape)[slices[name]].shape for name, shape in arrays.items()]

class Chosen(Exception):
    pass

def tell(hidden, experts, count, **rest):
    raise Chosen(experts.tolist())

def chosen():
    config = SimpleNamespace(num_experts_per_tok=1, num_experts=2, hidden_size=4)
    logits = jnp.array([[0.25, 0.251953125]], jnp.bfloat16)
    try:
        qwen3.Qwen3Experts.__call__(SimpleNamespace(config=config), jnp.zeros((1, 4), jnp.bfloat16), logits)
    except Chosen as found:
        return found.args[0]

qwen3.prepare_routing = tell

def scale_errors():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1000, 256)), jnp.bfloat16)
    found = layernorm.RMSNorm.__call__(SimpleNamespace(weight=jnp.ones(256, jnp.bfloat16), eps=1e-6), x)
    exact = np.asarray(x, np.float64)
    exact /= np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-6)
    return float(np.abs((np.asarray(found, np.float64) * exact).mean(axis=1) - 1).mean())

def padding():
    return backend.pad([[1, 2], [3]], 4, fill=[])

def two_samples(self, prepared_batch):
    outputs = {"fine": -1.0, "bad": float("nan")}
    return {
        name: types.SampleOutput(sequences=[types.GeneratedSequence(stop_reason="stop", tokens=[1], logprobs=[value])])
        for name, value in outputs.items()
    }

backend.JaxBackendImpl.sample = two_samples

def all_of_them():
    samples = failed(backend.JaxBackendImpl.sample(None, None))
    results = {"batch": batch(), "experts": expert_shapes(), "chosen": chosen(), "padding": padding()}
    results |= {"samples": samples, "scales": scale_errors()}
    print("RESULT", json.dumps(results))

all_of_them()
for name in ("requests", "expert_adapters", "norms", "routing", "padding", "finite_samples"):
    importlib.import_module(f"repairs.engine_{name}").apply()
all_of_them()
"""


@pytest.fixture(scope="module")
def in_process(server_env) -> list[dict[str, list]]:
    """What functions of skyrl return in the server's environment, as published and repaired."""
    lines = printed(IN_PROCESS)
    return [json.loads(line.removeprefix("RESULT ")) for line in lines if line.startswith("RESULT ")]


@pytest.mark.nightly
def test_one_bad_request_does_not_fail_its_batch(in_process):
    assert [result["batch"] for result in in_process] == [["first", "bad", "last"], ["bad"]]


@pytest.mark.nightly
def test_sampler_files_hold_the_whole_adapter_of_an_expert_layer(in_process):
    """8 experts, 16 wide, rank 2 of at most 4: stock keeps 2 rows of lora_A and 2 experts of lora_B."""
    assert [result["experts"] for result in in_process] == [[[8, 2, 4], [2, 4, 16]], [[8, 16, 2], [8, 2, 16]]]


@pytest.mark.nightly
def test_the_expert_of_the_larger_logit_is_chosen(in_process):
    """Two neighbours in bfloat16, whose probabilities are equal there."""
    assert [result["chosen"] for result in in_process] == [[0], [1]]


def test_a_row_is_scaled_by_its_root_mean_square(in_process):
    """In bfloat16; each row has 256 values, whose own rounding averages out."""
    stock, repaired = [result["scales"] for result in in_process]
    assert repaired < 4e-4
    assert stock > 5 * repaired


@pytest.mark.nightly
def test_padding_of_a_sampling_batch_repeats_a_real_sequence(in_process):
    """An empty prompt hardly ever stops; a copy, seed and all, stops with what it is a copy of."""
    assert [result["padding"] for result in in_process] == [[[1, 2], [3], [], []], [[1, 2], [3], [1, 2], [1, 2]]]


@pytest.mark.nightly
def test_a_sample_that_is_not_finite_is_an_error_of_its_request(in_process):
    assert [result["samples"] for result in in_process] == [[], ["bad"]]
