"""What the real server reports about its work, and the metrics that a step makes of it."""

import asyncio
from pathlib import Path

import tinker

from harbortrainer.backend.load import look
from harbortrainer.run.metrics import load_metrics
from tests.conftest import SMALL_SERVER
from tests.support.engine_parts import PROMPT, SAMPLING, adapters, sampler, step
from tests.support.engine_programs import printed

N_REQUESTS, SEATS = 6, int(SMALL_SERVER["SAMPLE_MAX_NUM_SEQUENCES"])


PROGRAMS = ("exported", "take_slot", "put_slot", "all_finite", "zeros")
NAMED = """
import sys
from repairs.engine_load import COMPILING, Load
load = Load(None)
for program in sys.argv[1:]:
    load.compile_began(COMPILING + "x", 0.0, fun_name=f"jit({program})")
    print(load.values["compiling"])
    load.compile_ended(COMPILING + "x", 0.0)
"""


def test_what_is_compiled_has_words_for_a_person() -> None:
    named = printed(NAMED, *PROGRAMS)[-len(PROGRAMS) :]
    assert not [words for words in named if not words.startswith(("a ", "an "))]


async def test_waves_requests_and_compilation_are_reported(server_url: str, tiny_model_dir: Path) -> None:
    before = await look(server_url) or {}
    assert before["seats"] == SEATS and before["compile_seconds"] > 0  # of the start
    async with adapters(server_url, tiny_model_dir) as (service, training):
        assert isinstance(training, tinker.TrainingClient)
        client = await sampler(service, training, "load")
        await asyncio.gather(*(client.sample(PROMPT, 1, SAMPLING) for _ in range(N_REQUESTS)))
        after = await look(server_url) or {}
        sampled = load_metrics(before, after)
        await step(training)
        trained = load_metrics(after, await look(server_url) or {})
    assert after["wave_requests"] - before["wave_requests"] >= N_REQUESTS, "each sat in a chunk, or in several"
    assert sampled["server/seats"] == SEATS
    assert 1 <= sampled["server/requests_per_wave"] <= N_REQUESTS
    assert sampled["server/wave_seconds"] > 0
    assert "server/requests_per_wave" not in trained, "a training step is no wave"
    assert "server/gpu_busy" not in sampled, "there is no GPU here"
    assert after["compiling"] is None
