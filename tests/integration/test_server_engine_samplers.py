"""Samplers of the server's engine: each defect is on the published server (at night) and not on ours."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import tinker

from tests.support.engine_parts import (
    DATA,
    PROMPT,
    SAMPLING,
    TOKENS,
    adapters,
    datum,
    loss,
    prompt_logprobs,
    sampler,
    step,
)


async def losses_while_sampling(url: str, model: Path, interleaved: bool) -> list[float]:
    """Five steps' losses; interleaved: with samples of two older versions between them."""
    async with adapters(url, model) as (service, client):
        losses, samplers = [], []
        for number in range(5):
            losses.append(await loss(client))
            await step(client, DATA)
            if interleaved and number < 2:
                samplers.append(await sampler(service, client, f"v{number}"))
            elif interleaved:
                for older in samplers:
                    await older.sample(PROMPT, 1, SAMPLING)
    return losses


async def test_sampling_from_older_weights_keeps_every_training_step(server_url, tiny_model_dir):
    undisturbed = await losses_while_sampling(server_url, tiny_model_dir, interleaved=False)
    assert undisturbed == sorted(undisturbed, reverse=True)
    assert await losses_while_sampling(server_url, tiny_model_dir, interleaved=True) == pytest.approx(undisturbed, 1e-6)


async def test_the_published_server_loses_training_steps(stock_url, tiny_model_dir):
    stock = await losses_while_sampling(stock_url, tiny_model_dir, interleaved=True)
    assert stock[3:] == pytest.approx([stock[2]] * 2, 1e-4), "every step after the last saved version was lost"


@pytest.mark.parametrize(("server", "frozen"), [("server_url", True), ("stock_url", False)])
async def test_a_sampler_is_a_snapshot(server, frozen, request, tiny_model_dir):
    async with adapters(request.getfixturevalue(server), tiny_model_dir) as (service, client):
        old = await sampler(service, client, "old")
        before = await prompt_logprobs(old)
        for _ in range(3):
            await step(client, DATA)
        after = await prompt_logprobs(old)
    assert (before == after) is frozen


async def test_a_late_first_sample_is_of_the_saved_weights(server_url, tiny_model_dir):
    async with adapters(server_url, tiny_model_dir, 2) as (service, client, twin):
        expected = await prompt_logprobs(await sampler(service, twin, "early"))
        late = await sampler(service, client, "late")
        for _ in range(3):
            await step(client, DATA)
        reached = await loss(client)
        assert await prompt_logprobs(late) == pytest.approx(expected, abs=1e-5)
        assert await loss(client) == pytest.approx(reached, rel=1e-6)


async def test_a_late_first_sample_costs_the_published_server_its_steps(stock_url, tiny_model_dir):
    async with adapters(stock_url, tiny_model_dir) as (service, client):
        late = await sampler(service, client, "late")
        for _ in range(3):
            await step(client, DATA)
        reached = await loss(client)
        await prompt_logprobs(late)
        assert await loss(client) > reached + 1


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


async def test_a_sampler_outlives_its_model(server_url, tiny_model_dir):
    async with adapters(server_url, tiny_model_dir) as (service, client):
        await step(client, DATA)
        snapshot = await sampler(service, client, "kept")
        before = await snapshot.sample(PROMPT, 1, SAMPLING)
    after = await snapshot.sample(PROMPT, 1, SAMPLING)
    assert after.sequences[0].tokens == before.sequences[0].tokens


async def test_a_sampler_of_the_published_server_ends_with_its_model(stock_url, tiny_model_dir):
    async with adapters(stock_url, tiny_model_dir) as (service, client):
        snapshot = await sampler(service, client, "lost")
    with pytest.raises(Exception, match="not loaded"):
        await snapshot.sample(PROMPT, 1, SAMPLING)


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


@pytest.mark.parametrize(("server", "missing"), [("server_url", 0), ("stock_url", 1)])
async def test_prompt_logprobs_have_a_value_for_each_token(server, missing, request, tiny_model_dir):
    async with adapters(request.getfixturevalue(server), tiny_model_dir) as (service, client):
        values = await (await sampler(service, client, "p")).compute_logprobs(PROMPT)
        output = await client.forward([datum(TOKENS[0])], "cross_entropy")
    assert len(values) == len(TOKENS[0]) - missing
    assert (values[0] is None) is not bool(missing)
    trained = np.asarray(output.loss_fn_outputs[0]["logprobs"].data)
    assert values[1 - missing :] == pytest.approx(trained.tolist(), abs=1e-4)
