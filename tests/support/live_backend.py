"""A backend on the session's server, and steps of it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import tinker

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.policy import PolicyTrainer, Published
from harbortrainer.config import Config
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.training.outside import Outside

LENGTHS = (20, 28, 24, 31)  # one length bucket of the server: few compilations
ADAM = tinker.AdamParams(learning_rate=2e-3, beta1=0.9, beta2=0.95, eps=1e-12)


def config(server_url: str, model: Path, **changes) -> Config:
    values: dict[str, Any] = {
        "backend": "skyrl-tx",
        "skyrl_tx_url": server_url,
        "model_name": str(model),
        "tasks_dir": "-",
        "lora_rank": 8,
        "context_limit": 4096,
    }
    return Config(**(values | changes))


@contextlib.asynccontextmanager
async def connected(settings: Config) -> AsyncIterator[Backend]:
    """A session, which ends with the block: else it beats until the process ends."""
    backend = await Outside().connect(settings)
    try:
        yield backend
    finally:
        await backend.close(done=True)


async def sampled(client: Published, advantages=(1.0, -1.0, 1.0, -1.0)) -> list[TrainingSequence]:
    """Four sampled answers with their logprobs, one advantage each."""
    sequences = []
    for index, (length, advantage) in enumerate(zip(LENGTHS, advantages, strict=True)):
        prompt = list(range(5, 5 + length))
        parameters = tinker.SamplingParams(max_tokens=8, temperature=1.0, seed=index)
        answer = await client.sample(tinker.ModelInput.from_ints(prompt), 1, parameters)
        tokens, logprobs = answer.sequences[0].tokens, answer.sequences[0].logprobs
        assert logprobs is not None and len(logprobs) == len(tokens)
        mask = np.array([False] * length + [True] * len(tokens))
        sequences.append(
            TrainingSequence(
                f"t{index}",
                np.array([*prompt, *tokens], np.int32),
                mask,
                np.array([0.0] * length + list(logprobs), np.float32),
                np.where(mask, advantage / 32, 0).astype(np.float32),
            )
        )
    return sequences


async def train(
    trainer: PolicyTrainer, sequences: list[TrainingSequence], loss_fn="importance_sampling", settings=None
):
    return await trainer.update(sequences, loss_fn=loss_fn, loss_fn_config=settings, adam=ADAM)
