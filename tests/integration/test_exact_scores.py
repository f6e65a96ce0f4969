"""Prompt log-probabilities and the likeliest tokens of the real server are those of the model in float64."""

from pathlib import Path

import numpy as np
import pytest
import tinker

from tests.support.exact_policy import exact_logprobs
from tests.support.tiers import first

CLOSE = 1e-4  # nats, in float32
BEST = 20  # the cookbook's


@pytest.mark.parametrize("length", first(2, [2, 100, 300]))
async def test_scores_are_those_of_the_model_in_float64(server_url: str, tiny_model_dir: Path, length: int) -> None:
    tokens = np.random.default_rng(length).integers(20, 250, length).tolist()
    service = tinker.ServiceClient(base_url=server_url, api_key="tml-dummy")
    client = await service.create_sampling_client(base_model=str(tiny_model_dir))
    prompt, params = tinker.ModelInput.from_ints(tokens), tinker.SamplingParams(max_tokens=1)
    asked = {"include_prompt_logprobs": True, "topk_prompt_logprobs": BEST}
    answer = await client.sample(prompt, 1, params, **asked)
    await service.close("success")
    exact = exact_logprobs(tiny_model_dir, tokens)[:-1]
    given = exact[np.arange(length - 1), tokens[1:]]
    assert (answer.prompt_logprobs or [])[1:] == pytest.approx(given.tolist(), abs=CLOSE)
    for place, pairs in zip(exact, (answer.topk_prompt_logprobs or [])[1:], strict=True):
        ids, scores = zip(*pairs or (), strict=True)
        assert list(scores) == pytest.approx(np.sort(place)[::-1][:BEST].tolist(), abs=CLOSE)
        assert place[list(ids)].tolist() == pytest.approx(list(scores), abs=CLOSE)
