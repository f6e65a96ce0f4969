"""What the real server reports about its work, and the metrics that a step makes of it."""

import asyncio
from pathlib import Path

import tinker

from harbortrainer.backend.load import read_load
from harbortrainer.run.metrics import load_metrics
from tests.conftest import SMALL_SERVER
from tests.support.engine_parts import PROMPT, SAMPLING, adapters, sampler, step

N_REQUESTS, SEATS = 6, int(SMALL_SERVER["SAMPLE_MAX_NUM_SEQUENCES"])


async def test_waves_requests_and_compilation_are_reported(server_url: str, tiny_model_dir: Path) -> None:
    before = await read_load(server_url)
    assert before["seats"] == SEATS and before["compile_seconds"] > 0  # of the start
    async with adapters(server_url, tiny_model_dir) as (service, training):
        assert isinstance(training, tinker.TrainingClient)
        client = await sampler(service, training, "load")
        await asyncio.gather(*(client.sample(PROMPT, 1, SAMPLING) for _ in range(N_REQUESTS)))
        after = await read_load(server_url)
        sampled = load_metrics(before, after)
        await step(training)
        trained = load_metrics(after, await read_load(server_url))
    assert after["wave_requests"] - before["wave_requests"] == N_REQUESTS
    assert sampled["server/seats"] == SEATS
    assert 1 <= sampled["server/requests_per_wave"] <= N_REQUESTS
    assert sampled["server/wave_seconds"] > 0
    assert "server/requests_per_wave" not in trained, "a training step is no wave"
    assert "server/gpu_busy" not in sampled, "there is no GPU here"
    assert after["compiling"] is None
