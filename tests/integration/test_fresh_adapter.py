"""A run without any state begins again from its seed: its adapter is then the lost one, as far as can be seen."""

import numpy as np
import pytest

from harbortrainer.backend.policy import PolicyTrainer
from tests.support.live_backend import config, connected, sampled, train


async def steps(server_url, model, seed: int) -> tuple[list[list[int]], list[np.ndarray]]:
    """Tokens that a fresh adapter samples, and the logprobs of three steps on them: before, after one, after two."""
    settings = config(server_url, model, seed=seed)
    async with connected(settings) as backend:
        trainer = await PolicyTrainer.create(backend, settings)
        sequences = await sampled(await trainer.publish(0))
        results = [await train(trainer, sequences) for _ in range(3)]
    return [s.tokens_T.tolist() for s in sequences], [np.concatenate(result.logprobs_D) for result in results]


async def test_the_same_seed_makes_the_same_adapter_and_the_same_updates(server_url, tiny_model_dir):
    tokens, lost = await steps(server_url, tiny_model_dir, seed=0)
    tokens_again, again = await steps(server_url, tiny_model_dir, seed=0)
    _, other = await steps(server_url, tiny_model_dir, seed=1)
    assert tokens_again == tokens
    for before, after in zip(lost, again, strict=True):
        assert after == pytest.approx(before, abs=1e-6)
    assert other[0] == pytest.approx(lost[0], abs=1e-6), "a fresh adapter changes nothing yet, whatever its seed"
    assert np.abs(other[2] - lost[2]).max() > 1e-4, "and then the seed tells"
