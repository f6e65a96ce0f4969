"""PolicyTrainer against the real self-hosted server."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tinker

from harbortrainer.backend.policy import PolicyTrainer
from harbortrainer.errors import BackendError, UserError
from harbortrainer.learning.datums import TrainingSequence
from tests.support.live_backend import config, connected, sampled, train


@contextlib.asynccontextmanager
async def policy(server_url: str, model: Path) -> AsyncIterator[PolicyTrainer]:
    settings = config(server_url, model)
    async with connected(settings) as backend:
        trainer = await PolicyTrainer.create(backend, settings)
        try:
            yield trainer
        finally:
            await trainer.close()


async def logprobs(trainer: PolicyTrainer, sequences: list[TrainingSequence]) -> list[float]:
    """Summed logprob of each sampled answer now, by a step that changes nothing."""
    still = tinker.AdamParams(learning_rate=0.0)
    result = await trainer.update(sequences, loss_fn="importance_sampling", loss_fn_config=None, adam=still)
    return [float(lp[s.mask_T].sum()) for lp, s in zip(result.logprobs_D, sequences, strict=True)]


async def test_sampled_logprobs_are_the_trainers(server_url, tiny_model_dir):
    async with policy(server_url, tiny_model_dir) as trainer:
        sequences = await sampled(await trainer.publish(0))
        result = await train(trainer, sequences)
    for computed, sequence in zip(result.logprobs_D, sequences, strict=True):
        assert np.abs(computed[sequence.mask_T] - sequence.logprobs_T[sequence.mask_T]).max() <= 1e-3
    assert result.metrics["optim/grad_norm"] > 0
    assert result.metrics["optim/learning_rate_applied"] == pytest.approx(2e-3)


async def gradient(
    trainer: PolicyTrainer, part: list[TrainingSequence], loss_fn: str = "importance_sampling", settings=None
) -> float:
    """Norm of the gradient of one update, by a step that changes nothing."""
    still = tinker.AdamParams(learning_rate=0.0)
    result = await trainer.update(part, loss_fn=loss_fn, loss_fn_config=settings, adam=still)
    return result.metrics["optim/grad_norm"]


def only(sequence: TrainingSequence, sampled: slice) -> TrainingSequence:
    """The same tokens, of which only these sampled ones are trained."""
    mask = np.zeros_like(sequence.mask_T)
    mask[np.flatnonzero(sequence.mask_T)[sampled]] = True
    logprobs = np.where(mask, sequence.logprobs_T, 0).astype(np.float32)
    return replace(sequence, mask_T=mask, logprobs_T=logprobs).with_advantages(sequence.advantages_T)


async def test_gradient_is_the_sum_over_tokens_whatever_the_server_divides_by(server_url, tiny_model_dir):
    """The server averages over each datum's tokens, then over datums. Two datums with 2 and 6 of a sequence's 8 tokens
    must together be the sequence, and 11 shares of it too (more than one micro-batch, the last one not full)."""
    async with policy(server_url, tiny_model_dir) as trainer:
        *_, sequence = await sampled(await trainer.publish(0))
        whole = await gradient(trainer, [sequence])
        first, rest = only(sequence, slice(0, 2)), only(sequence, slice(2, None))
        alone = await gradient(trainer, [first]), await gradient(trainer, [rest])
        assert await gradient(trainer, [first, rest]) == pytest.approx(whole, rel=1e-3)
        assert min(alone) > 0.1 * whole and max(alone) < 0.99 * whole  # the two parts pull in different directions
        share = sequence.with_advantages(sequence.advantages_T / 11)
        assert await gradient(trainer, [share] * 11) == pytest.approx(whole, rel=1e-3)


@pytest.mark.nightly
async def test_clip_settings_reach_the_loss(server_url, tiny_model_dir):
    """Sampled half as likely as now, every ratio is 2: ppo drops what is above its threshold, cispo caps its weight."""

    async def at(loss_fn: str, high: float) -> float:
        settings = {"clip_low_threshold": 0.8, "clip_high_threshold": high}
        return await gradient(trainer, [shifted], loss_fn, settings)

    async with policy(server_url, tiny_model_dir) as trainer:
        sequence, *_ = await sampled(await trainer.publish(0))
        logprobs = np.where(sequence.mask_T, sequence.logprobs_T - np.log(2), 0).astype(np.float32)
        shifted = replace(sequence, logprobs_T=logprobs)
        plain = await gradient(trainer, [shifted])
        assert await at("ppo", 1.5) == 0
        assert await at("ppo", 2.5) == pytest.approx(plain, rel=1e-3)
        assert await at("cispo", 1.5) == pytest.approx(plain * 1.5 / 2, rel=1e-3)
        assert await at("cispo", 2.5) == pytest.approx(plain, rel=1e-3)


@pytest.mark.nightly
async def test_close_frees_the_slot(server_url, tiny_model_dir):
    settings = config(server_url, tiny_model_dir)
    async with connected(settings) as backend:
        for _ in range(9):  # the server has 7
            await (await PolicyTrainer.create(backend, settings)).close()


async def test_checkpoint_that_does_not_fit_or_is_gone_names_the_cause(server_url, tiny_model_dir):
    async with policy(server_url, tiny_model_dir) as trainer:
        path = await trainer.save(1)
        other_rank = config(server_url, tiny_model_dir, lora_rank=4)
        with pytest.raises(UserError, match=rf"lora_rank=4: the checkpoint {path} has rank 8"):
            async with connected(other_rank) as backend:
                await PolicyTrainer.restore(backend, other_rank, path)
        await trainer.delete(path)
    settings = config(server_url, tiny_model_dir)
    with pytest.raises(BackendError, match=rf"reading {path}: .*FRESH=1"):
        async with connected(settings) as backend:
            await PolicyTrainer.restore(backend, settings, path)


@pytest.mark.nightly
async def test_weights_that_have_diverged_stop_the_run_and_hurt_nobody_else(server_url, tiny_model_dir):
    async with policy(server_url, tiny_model_dir) as trainer:
        sequences = await sampled(await trainer.publish(0))
        with pytest.raises(BackendError, match=r"diverged.*lower learning_rate"):
            for _ in range(2):
                absurd = tinker.AdamParams(learning_rate=1e30)
                await trainer.update(sequences, loss_fn="importance_sampling", loss_fn_config=None, adam=absurd)
    async with policy(server_url, tiny_model_dir) as healthy:
        assert np.isfinite(await logprobs(healthy, sequences)).all()
