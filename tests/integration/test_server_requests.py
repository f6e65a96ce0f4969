"""Requests whose answer is lost, or that fail for a while, on the way to the real server: nothing is done twice."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from src.backend.connect import connect
from src.backend.policy import PolicyTrainer

from .proxy import Fault, Proxy, Rule, proxy_to
from .test_backend_live import config, logprobs, sampled, train

POSTS = ("create_model", "forward_backward", "optim_step", "save_weights", "save_weights_for_sampler", "asample")


@contextlib.asynccontextmanager
async def policy_through(server_url: str, model: Path, *rules: Rule) -> AsyncIterator[tuple[PolicyTrainer, Proxy]]:
    async with proxy_to(server_url, *rules) as proxy:
        settings = config(proxy.url, model)
        backend = await connect(settings)
        trainer = await PolicyTrainer.create(backend, settings)
        try:
            yield trainer, proxy
        finally:
            await trainer.close()
            await backend.close(done=True)


async def twice_trained(trainer: PolicyTrainer) -> tuple[list[float], float, str]:
    """Logprobs after two steps, the server's count of steps, and the state's path."""
    sequences = await sampled(await trainer.publish(0))
    await train(trainer, sequences)
    result = await train(trainer, sequences)
    path = await trainer.save(2)
    return await logprobs(trainer, sequences), result.metrics["optim/server_step"], path


@pytest.mark.parametrize(("fault", "times"), [("cut", 1), ("503", 2)])
async def test_a_request_that_is_sent_again_is_done_once(
    server_url: str, tiny_model_dir: Path, fault: Fault, times: int
) -> None:
    """The SDK sends each again; the same weights, the same step, and one state as on an undisturbed way."""
    async with policy_through(server_url, tiny_model_dir) as (trainer, proxy):
        expected, steps, path = await twice_trained(trainer)
        await trainer.delete(path)
        usual = dict(proxy.counts)
    rules = [Rule(path, fault, times=times) for path in POSTS]
    async with policy_through(server_url, tiny_model_dir, *rules) as (trainer, proxy):
        disturbed, disturbed_steps, path = await twice_trained(trainer)
        await trainer.delete(path)
        for post in POSTS:
            assert proxy.counts[post] >= usual[post] + times, f"{post} was not sent again"
    assert (steps, disturbed_steps) == (2, 2)
    assert np.abs(np.array(disturbed) - np.array(expected)).max() <= 1e-5
