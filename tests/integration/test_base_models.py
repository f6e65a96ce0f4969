"""A base model of the Llama family on our server; the Qwen3 family is what every other test serves."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinker

from scripts.models import tiny_llama
from src.chat_template import ChatTemplate
from tests.conftest import live_server

MESSAGES = [{"role": "user", "content": "list the files"}]


@pytest.fixture(scope="module")
def llama_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "a" / "tiny-llama"
    tiny_llama.write(tiny_model_dir, directory)
    return directory


@pytest.fixture(scope="module")
def training(
    llama_dir: Path, server_env: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tinker.TrainingClient]:
    with live_server(llama_dir, tmp_path_factory.mktemp("llama-server")) as url:
        service = tinker.ServiceClient(base_url=url, api_key="tml-none")
        yield service.create_lora_training_client(base_model=str(llama_dir), rank=4).result()


def datum(prompt: list[int], answer: list[int]) -> tinker.Datum:
    """Cross entropy on `answer` alone."""
    tokens, weights = prompt + answer, [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
    targets = tokens[1:]
    inputs = {
        "target_tokens": tinker.TensorData(data=targets, dtype="int64", shape=[len(targets)]),
        "weights": tinker.TensorData(data=weights, dtype="float32", shape=[len(targets)]),
    }
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def test_llama_samples_and_trains(llama_dir: Path, training: tinker.TrainingClient) -> None:
    prompt = ChatTemplate.load(str(llama_dir), enable_thinking=False).first_prompt(MESSAGES)
    sampler = training.save_weights_and_get_sampling_client()
    sampler = getattr(sampler, "result", lambda: sampler)()
    params = tinker.SamplingParams(max_tokens=8, temperature=1.0, seed=1)
    model_input = tinker.ModelInput.from_ints(prompt)
    sequence = sampler.sample(model_input, num_samples=1, sampling_params=params).result().sequences[0]
    assert 1 <= len(sequence.tokens) <= 8
    assert sequence.logprobs and len(sequence.logprobs) == len(sequence.tokens)

    one = datum(prompt, list(sequence.tokens))
    before = training.forward_backward([one], "cross_entropy")
    stepped = training.optim_step(tinker.AdamParams(learning_rate=1e-2))
    scored = before.result().loss_fn_outputs[0]["logprobs"].data[len(prompt) - 1 :]
    assert scored == pytest.approx(list(sequence.logprobs), abs=1e-4), "sampler and trainer are not the same model"
    stepped.result()
    after = training.forward([one], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data[len(prompt) - 1 :]
    assert all(math.isfinite(value) for value in after)
    assert sum(after) > sum(scored), "a step towards these tokens did not make them likelier"
