"""Qwen3.5, whose layers are linear attention by turns with attention, against transformers in float32."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker

from scripts.models import tiny_hybrid
from tests.conftest import live_server
from tests.support.conformance import conforms
from tests.support.engine_parts import ADAM, DATA, adapters, datum, sampler, step
from tests.support.engine_programs import results
from tests.support.hybrid_reference import ADAPTERS, FILE, LENGTHS, TOKENIZER, UNPADDED
from tests.support.vllm_server import vllm_server

CLOSE = 1e-4  # nats, and of a gradient its share
NOISE = 0.05  # nats, of bfloat16, in which vLLM computes linear attention on a CPU; on average
EXACT = "tests/conformance/test_sampling.py::test_sampled_logprobs_are_the_trainers"
COMPUTED = """
import repairs
repairs.apply("engine", repairs.NAMES)
from tests.support import hybrid_engine
"""


def computed(folder: Path, tokens: int, *, only_samples: bool = False) -> dict[str, Any]:
    """By an engine with blocks of so many tokens."""
    tiny_hybrid.write(TOKENIZER, folder)
    return results(folder, f"{COMPUTED}hybrid_engine.main({tokens}, {only_samples})")


def apart(one: list[float], other: list[float]) -> float:
    return float(np.abs(np.array(one) - np.array(other)).max())


def check_answers(found: dict[str, Any], longest: int = max(LENGTHS)) -> None:
    known = json.loads(FILE.read_text())["answers"]
    for name in ADAPTERS:
        for length, (tokens, logprobs) in zip(LENGTHS, known[name], strict=True):
            if length <= longest:
                sampled, scores = found[f"{name} {length}"]
                assert sampled == tokens, (name, length)
                assert apart(scores, logprobs) < CLOSE, (name, length)


def test_answers_behind_padded_prompts_are_those_of_transformers(server_env: None, tmp_path: Path) -> None:
    """Prompts of 1 to 128 tokens, the longest without padding; two adapters and the base model in one batch."""
    check_answers(computed(tmp_path, 2048, only_samples=True)["answers"], UNPADDED)


@pytest.mark.nightly
@pytest.mark.parametrize("tokens", [4096, 512])
def test_prompts_answers_and_gradients_are_those_of_transformers(server_env: None, tmp_path: Path, tokens: int) -> None:
    """Up to 700 tokens, with layers computed at once and in blocks."""
    known, found = json.loads(FILE.read_text()), computed(tmp_path, tokens)
    check_answers(found["answers"])
    for name in ADAPTERS:
        assert apart(found["prompts"][name], known["prompts"][name]) < CLOSE, name
    assert found["drawn"] < CLOSE, "the sampler is not the trainer"
    for name, products in known["gradients"].items():
        assert apart(found["gradients"][name], products) < CLOSE * products[0], name


@pytest.mark.nightly
def test_it_passes_the_conformance_tests_in_its_published_form(server_env: None, tmp_path: Path) -> None:
    model = tmp_path / "a" / "tiny"
    tiny_hybrid.write(TOKENIZER, model, "published")
    with live_server(model, tmp_path / "server") as url:
        conforms(url)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["published", "text"])
async def test_vllm_samples_with_the_whole_adapter(server_env: None, tmp_path: Path, kind: tiny_hybrid.Kind) -> None:
    """The trainer in float32, vLLM in bfloat16: sampled log-probabilities differ by rounding, all else is exact."""
    model = tmp_path / "a" / "wide"
    tiny_hybrid.write(TOKENIZER, model, kind, size="wide")
    with vllm_server(tmp_path / "vllm", model, VLLM_FLAGS="--dtype bfloat16") as server:
        async with adapters(server.url, model, 2) as (service, one, two):
            await step(one, DATA, adam=ADAM)
            await step(two, DATA[:1], adam=ADAM)
            for client in (one, two):
                saved = await sampler(service, client, "whole")
                assert await difference(client, saved) < NOISE
            assert await difference(two, await sampler(service, one, "other")) > 2 * NOISE
        if kind == "published":
            conforms(server.url, "--deselect", EXACT)


async def difference(client: Any, saved: Any) -> float:
    """The mean one of sampled log-probabilities from the trainer's, of answers to a short and a long prompt."""
    found: list[float] = []
    for length in (3, 200):
        prompt = np.random.default_rng(length).integers(5, 250, length).tolist()
        params = tinker.SamplingParams(max_tokens=24, temperature=1.0, seed=length)
        answer = (await saved.sample(tinker.ModelInput.from_ints(prompt), 1, params)).sequences[0]
        output = await client.forward([datum([*prompt, *answer.tokens])], "cross_entropy")
        trained = np.asarray(output.loss_fn_outputs[0]["logprobs"].data)[-len(answer.tokens) :]
        found += np.abs(trained - np.asarray(answer.logprobs)).tolist()
    return float(np.mean(found))
