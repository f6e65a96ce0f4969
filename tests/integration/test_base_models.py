"""Base models other than the quickstart's float32 Qwen3: a Llama and a Qwen3 in bfloat16, and a real one."""

import math
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import tinker

from bench.learning_rates import changes
from harbortrainer.backend.sessions import DUMMY_KEY, end_session, open_rest, open_session
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.probe.probe import probe
from harbortrainer.probe.report import ServerReport
from scripts.models import tiny_model
from tests.conftest import live_server, succeed
from tests.support.engine_parts import adapters, loss, raw, step
from tests.support.small_server import checkpoints_base
from tests.support.tiers import first

SETTINGS = {"TRAIN_MICRO_BATCH_SIZE": "2"}  # one size of passes: one program
MESSAGES = [{"role": "user", "content": "list the files"}]


@dataclass(frozen=True)
class Served:
    model: Path
    url: str


@pytest.fixture(scope="module", params=first(1, ["llama", "qwen3"]))
def bfloat16(
    request: pytest.FixtureRequest, tiny_model_dir: Path, server_env: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One server for each kind of model."""
    folder = tmp_path_factory.mktemp(request.param)
    model = folder / "a" / "tiny"
    tiny_model.write(tiny_model_dir, model, request.param, "bfloat16")
    with live_server(model, folder / "server", **SETTINGS) as url:
        yield Served(model, url)


async def measured(served: Served) -> ServerReport:
    """What the probe finds."""
    session = await open_session(await open_rest(served.url, DUMMY_KEY), served.url, DUMMY_KEY, print)
    try:
        return await probe(session, str(served.model))
    finally:
        await end_session(session.service, done=True)


@pytest.mark.nightly
async def test_every_row_of_the_probe_is_right(bfloat16: Served) -> None:
    """Gradient norms of hundreds, and gains of a step of one nat that scatter by 0.2 nats."""
    report = await measured(bfloat16)
    assert {row.what: row.value for row in report.rows if row.verdict not in ("same", "info")} == {}
    assert report.facts.reduction == "sum"
    assert set(report.facts.adam.values()) == {True} and len(report.facts.adam) == 5


def datum(prompt: list[int], answer: list[int]) -> tinker.Datum:
    """Cross entropy on `answer` alone."""
    tokens, weights = prompt + answer, [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
    targets = tokens[1:]
    inputs = {
        "target_tokens": tinker.TensorData(data=targets, dtype="int64", shape=[len(targets)]),
        "weights": tinker.TensorData(data=weights, dtype="float32", shape=[len(targets)]),
    }
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


ONE = datum([5, 6, 7], [8, 9])  # of the probe's length for the compiler
DATA = [ONE, ONE]  # and of its number of datums
SMALL = tinker.AdamParams(learning_rate=1e-6, beta1=0.9, beta2=0.95, eps=1e-12)


async def test_a_step_towards_sampled_tokens_makes_them_likelier(bfloat16: Served) -> None:
    """With Adam's beta2 of 0.999, which is 1 in bfloat16."""
    prompt = ChatTemplate.load(str(bfloat16.model), enable_thinking=False).first_prompt(MESSAGES)
    async with adapters(bfloat16.url, bfloat16.model) as (service, training):
        path = (await training.save_weights_for_sampler("start")).path
        sampler = await service.create_sampling_client(model_path=path)
        params = tinker.SamplingParams(max_tokens=8, temperature=1.0, seed=1)
        answer = await sampler.sample(tinker.ModelInput.from_ints(prompt), 1, params)
        tokens, sampled = list(answer.sequences[0].tokens), list(answer.sequences[0].logprobs or ())
        one = datum(prompt, tokens)
        outputs = []
        for _ in range(3):
            passed = training.forward_backward([one], "cross_entropy")
            stepped = training.optim_step(tinker.AdamParams(learning_rate=1e-2, beta2=0.999, eps=1e-8))
            outputs.append((await passed).loss_fn_outputs[0]["logprobs"].data[len(prompt) - 1 :])
            await stepped
    assert outputs[0] == pytest.approx(sampled, abs=0.1), "sampler and trainer are not the same model"
    assert all(math.isfinite(value) for value in outputs[-1])
    assert sum(outputs[-1]) > sum(outputs[0]) + 0.5


def saved_weights(served: Served, path: str) -> dict[str, np.ndarray]:
    """Of the sampler checkpoint at a tinker:// path."""
    model_id, name = path.removeprefix("tinker://").split("/sampler_weights/")
    file = checkpoints_base(served.url) / model_id / "sampler_weights" / f"{name}.tar.gz"
    with tarfile.open(file) as archive:
        member = archive.extractfile("adapter_model.safetensors")
        assert member is not None
        return safetensors.numpy.load(member.read())


@pytest.mark.nightly
async def test_a_small_learning_rate_moves_every_trained_weight(bfloat16: Served) -> None:
    """A weight of 0.1 in bfloat16 would not move by a step of 1e-6, nor by a hundred."""
    async with adapters(bfloat16.url, bfloat16.model) as (_, training):
        await step(training, DATA, adam=SMALL)  # lora_B is 0 before it, and lora_A without gradient
        before = saved_weights(bfloat16, (await training.save_weights_for_sampler("before")).path)
        await step(training, DATA, adam=SMALL)
        after = saved_weights(bfloat16, (await training.save_weights_for_sampler("after")).path)
    moved = [np.abs(after[name] - before[name]) for name in before if "lora_A" in name and "self_attn" in name]
    assert moved and all((0 < part.max() < 3e-6) for part in moved)
    assert all((part > 0).mean() > 0.5 for part in moved)


RATES, STEPS, DATUMS = (1e-4, 1e-5), 12, 24


async def moved(served: Served, adam: tinker.AdamParams, steps: int) -> np.ndarray:
    """What each weight of a fresh adapter gains by `steps` steps, after the first, in one row."""
    async with adapters(served.url, served.model) as (_, training):
        await step(training, DATA, adam=adam)
        before = saved_weights(served, (await training.save_weights_for_sampler("before")).path)
        for _ in range(steps):
            await step(training, DATA, adam=adam)
        after = saved_weights(served, (await training.save_weights_for_sampler("after")).path)
    return np.concatenate([(after[name] - before[name]).ravel() for name in sorted(before)])


@pytest.mark.nightly
@pytest.mark.parametrize("bfloat16", ["qwen3"], indirect=True)  # one kind is enough: it takes a second server
async def test_small_rates_have_the_effect_that_they_have_in_float32(
    bfloat16: Served, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """The loss falls as much, within a factor of 1.5; at 1e-6, which rounding of the loss hides, weights move alike."""
    model = tmp_path / "a" / "tiny"
    tiny_model.write(tiny_model_dir, model, "qwen3", "float32")
    with live_server(model, tmp_path / "server", **SETTINGS) as url:
        exact = await changes(url, str(model), RATES, STEPS, DATUMS)
        steps = await moved(Served(model, url), SMALL, 5)
    found = await changes(bfloat16.url, str(bfloat16.model), RATES, STEPS, DATUMS)
    for rate, one, other in zip(RATES, exact, found, strict=True):
        assert one.change < 0, f"{rate}: float32 does not learn"
        assert 1 / 1.5 < other.change / one.change < 1.5, f"{rate}: {other.change} instead of {one.change}"
    rounded = await moved(bfloat16, SMALL, 5)
    lengths = np.linalg.norm(steps), np.linalg.norm(rounded)
    assert lengths[1] == pytest.approx(lengths[0], rel=0.1)
    assert steps @ rounded / (lengths[0] * lengths[1]) > 0.8, "they move elsewhere"


@pytest.mark.nightly
async def test_states_and_samplers_of_a_bfloat16_model_lose_nothing_of_the_weights(bfloat16: Served) -> None:
    """The next step of a restored state is the same to the last bit; sampler files are in float32."""
    async with adapters(bfloat16.url, bfloat16.model) as (service, training):
        await step(training, DATA)
        path = (await training.save_state("exact")).path
        first = saved_weights(bfloat16, (await training.save_weights_for_sampler("exact")).path)
        assert {str(part.dtype) for part in first.values()} == {"float32"}
        copy = await service.create_training_client_from_state_with_optimizer(path)
        try:
            await step(training, DATA, adam=SMALL)
            await step(copy, DATA, adam=SMALL)
            ends = [
                saved_weights(bfloat16, (await client.save_weights_for_sampler("next")).path)
                for client in (training, copy)
            ]
        finally:
            await raw(bfloat16.url, "unload_model", {"model_id": copy.model_id, "type": "unload_model"})
    assert all(np.array_equal(ends[0][name], ends[1][name]) for name in first)
    assert any(not np.array_equal(ends[0][name], first[name]) for name in first)


TO_BFLOAT16 = """
import sys
import jax, jax.numpy as jnp
from flax.training import checkpoints
saved = checkpoints.restore_checkpoint(sys.argv[1], target=None, prefix="checkpoint_")
print(*sorted({str(leaf.dtype) for leaf in jax.tree.leaves(saved) if getattr(leaf, "ndim", 0) > 1}))
def old(value):
    return value.astype(jnp.bfloat16) if getattr(value, "dtype", None) == jnp.float32 else value
checkpoints.save_checkpoint_multiprocess(
    target=jax.tree.map(old, saved), ckpt_dir=sys.argv[1], step=0, prefix="checkpoint_", overwrite=True)
"""


@pytest.mark.nightly
async def test_a_state_in_bfloat16_of_an_earlier_version_is_restored(bfloat16: Served) -> None:
    async with adapters(bfloat16.url, bfloat16.model) as (service, training):
        await step(training, DATA)
        trained = await loss(training, DATA)
        path = (await training.save_state("old")).path
        folder = checkpoints_base(bfloat16.url) / training.model_id / "old.tar.gz"
        dtypes = succeed("server/.venv/bin/python", "-c", TO_BFLOAT16, folder, env={"JAX_PLATFORMS": "cpu"})
        assert dtypes.split()[-1:] == ["float32"] and "bfloat16" not in dtypes, "what is saved now"
        copy = await service.create_training_client_from_state_with_optimizer(path)
        try:
            assert await loss(copy, DATA) == pytest.approx(trained, rel=0.01)
            await step(copy, DATA, adam=tinker.AdamParams(learning_rate=1e-3, beta2=0.999))
            assert math.isfinite(await loss(copy, DATA))
        finally:
            await raw(bfloat16.url, "unload_model", {"model_id": copy.model_id, "type": "unload_model"})


@pytest.mark.nightly
async def test_the_probe_of_a_real_model(server_env: None, tmp_path: Path) -> None:
    """SmolLM2-135M in float32: minutes on two cores. A probing step of one nat is far from linear here."""
    model = tmp_path / "a" / "SmolLM2-135M-Instruct"
    succeed("scripts/get_smollm2.sh", model, timeout_sec=900)
    with live_server(model, tmp_path / "server") as url:
        report = await measured(Served(model, url))
    assert {row.what: row.value for row in report.rows if row.verdict not in ("same", "info")} == {}


@pytest.mark.nightly
async def test_log_probabilities_of_a_bfloat16_model_are_not_rounded_to_bfloat16(bfloat16: Served) -> None:
    """A number of bfloat16 has 8 bits: the lower half of a float32's is zero."""
    async with adapters(bfloat16.url, bfloat16.model) as (service, training):
        trained = (await training.forward(DATA, "cross_entropy")).loss_fn_outputs[0]["logprobs"].data
        path = (await training.save_weights_for_sampler("digits")).path
        sampler = await service.create_sampling_client(model_path=path)
        params = tinker.SamplingParams(max_tokens=4, temperature=1.0, seed=1)
        sampled = (await sampler.sample(tinker.ModelInput.from_ints([5, 6, 7]), 1, params)).sequences[0].logprobs
    for values in (trained, sampled):
        assert (np.asarray(values, np.float32).view(np.uint32) & 0xFFFF).any(), values
