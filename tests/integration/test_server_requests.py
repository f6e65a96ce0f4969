"""Requests whose answer is lost, or that fail for a while, on the way to the real server: nothing is done twice."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harbortrainer.backend.policy import PolicyTrainer
from harbortrainer.training.outside import Outside
from tests.support.proxy import Proxy, Rule, proxy_to

from .test_backend_live import config, logprobs, sampled, train

POSTS = ("create_model", "forward_backward", "optim_step", "save_weights", "save_weights_for_sampler", "asample")


@contextlib.asynccontextmanager
async def policy_through(server_url: str, model: Path, *rules: Rule) -> AsyncIterator[tuple[PolicyTrainer, Proxy]]:
    async with proxy_to(server_url, *rules) as proxy:
        settings = config(proxy.url, model)
        backend = await Outside().connect(settings)
        trainer = await PolicyTrainer.create(backend, settings)
        try:
            yield trainer, proxy
        finally:
            await trainer.close()
            await backend.close(done=True)


async def twice_trained(trainer: PolicyTrainer) -> tuple[list[float], list[float], float]:
    """Logprobs after two steps, the norms of their gradients, and the server's count of steps."""
    sequences = await sampled(await trainer.publish(0))
    results = [await train(trainer, sequences) for _ in range(2)]
    await trainer.delete(await trainer.save(2))
    norms = [result.metrics["optim/grad_norm"] for result in results]
    return await logprobs(trainer, sequences), norms, results[-1].metrics["optim/server_step"]


async def test_a_request_that_is_sent_again_is_done_once(server_url: str, tiny_model_dir: Path) -> None:
    """Each fails once, then its answer is lost: the same weights, step and state as on an undisturbed way."""
    await (await Outside().connect(config(server_url, tiny_model_dir))).close(done=True)  # measures it, once
    async with policy_through(server_url, tiny_model_dir) as (trainer, proxy):
        expected, norms, steps = await twice_trained(trainer)
        usual = dict(proxy.counts)
    rules = [Rule(path, "503") for path in POSTS] + [Rule(path, "cut", nth=1) for path in POSTS]
    async with policy_through(server_url, tiny_model_dir, *rules) as (trainer, proxy):
        disturbed, disturbed_norms, disturbed_steps = await twice_trained(trainer)
        for post in POSTS:
            assert proxy.counts[post] >= usual[post] + 2, f"{post} was not sent again"
    assert (steps, disturbed_steps) == (2, 2)
    assert disturbed_norms == pytest.approx(norms, rel=1e-3), "a pass that is done twice has twice the gradient"
    assert disturbed == pytest.approx(expected, abs=1e-3)
