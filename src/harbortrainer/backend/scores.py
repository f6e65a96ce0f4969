"""Logprobs of whole sequences by a sampling client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import tinker

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.datum import all_tokens
from harbortrainer.learning.datums import TrainingSequence


async def scores(
    backend: Backend, client: tinker.SamplingClient, sequences_D: Sequence[TrainingSequence], whose: str
) -> list[np.ndarray]:
    """Return per sequence N natural logs, 0 for the first token. Raises BackendError, ServerLost."""
    calls = [client.compute_logprobs(tinker.ModelInput.from_ints(s.tokens_T.tolist())) for s in sequences_D]
    answers = await backend.wait(f"logprobs of {whose}", asyncio.gather(*calls), backend.limits.update_sec)
    return [all_tokens(answer, len(s.tokens_T)) for answer, s in zip(answers, sequences_D, strict=True)]
