"""PolicyTrainer's order of calls and its checks of answers, on a scripted SDK. The real one: tests/integration."""

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import tinker

from harbortrainer.backend.policy import PolicyTrainer, SavedState
from harbortrainer.errors import BackendError, ServerLost, UserError, WeightsGone
from harbortrainer.stopping import run_until
from tests.support.fake_tinker import CONFIG, Answer, FakeTinker, backend, sequence


@pytest.fixture
def fake() -> FakeTinker:
    return FakeTinker()


async def update(policy: PolicyTrainer):
    return await policy.update(
        [sequence()], loss_fn="ppo", loss_fn_config={"clip_low_threshold": 0.8}, adam=tinker.AdamParams()
    )


async def test_both_requests_are_submitted_before_either_is_awaited(fake):
    result = await update(await PolicyTrainer.create(backend(fake), CONFIG))
    assert fake.log == [
        "create m 32 7",
        "submit forward_backward ppo {'clip_low_threshold': 0.8}",
        "submit optim_step",
        "await forward_backward",
        "await optim_step",
    ]
    assert result.logprobs_D[0].tolist() == [0, -0.5, -0.5, -0.5, -0.5]
    assert result.metrics == {"server/loss_sum": 2.0, "optim/grad_norm": 3.0}


@pytest.mark.parametrize(
    ("logprobs", "words"), [([-0.5, np.nan, -0.5, -0.5], "diverged"), ([-0.5], "1 logprobs for 5 tokens of t")]
)
async def test_logprobs_that_cannot_be_right_stop_the_run(fake, logprobs, words):
    fake.logprobs = logprobs
    with pytest.raises(BackendError, match=words):
        await update(await PolicyTrainer.create(backend(fake), CONFIG))


async def test_names_are_never_used_twice_and_old_samplers_are_deleted(fake):
    first, second = [await PolicyTrainer.create(backend(fake), CONFIG) for _ in range(2)]  # a resumed run is a second
    paths = [await first.save(1), await second.save(1)]
    assert len(set(paths)) == 2
    await first.publish(1)
    assert not any(entry.startswith("delete") for entry in fake.log)
    await first.publish(2)
    await first.publish(3)
    first.retire({1})
    first.retire()
    await first.close()
    samplers = [entry.removeprefix("sampler ") for entry in fake.log if entry.startswith("sampler")]
    assert len(set(samplers)) == 3
    deleted = [entry.removeprefix("delete ") for entry in fake.log if entry.startswith("delete")]
    assert deleted == [samplers[1], samplers[0]], "those in use last, the newest never"


async def test_a_sampler_that_two_steps_share_is_deleted_when_neither_needs_it(fake):
    policy = await PolicyTrainer.create(backend(fake), CONFIG)
    assert policy.frozen_samplers
    await policy.publish(1)
    client, path = policy.newest()
    policy.relabel(2)  # the batch had no signal
    assert policy.newest() == (client, path)
    await policy.publish(3)
    policy.retire({2})
    policy.discard(path)
    await asyncio.sleep(0)
    assert f"delete {path}" not in fake.log, "step 2 needs it"
    policy.retire()
    await policy.close()
    assert fake.log.count(f"delete {path}") == 1


async def test_weights_of_an_earlier_process_are_sampled_where_the_server_has_them(fake):
    policy = await PolicyTrainer.create(backend(fake), CONFIG)
    path = "tinker://earlier/sampler_weights/s"
    assert await policy.sampler_at(path) is None
    fake.listed = [SimpleNamespace(tinker_path=path)]
    assert await policy.sampler_at(path) is not None and fake.log[-1] == f"sampler {path}"
    policy.discard(path)
    await policy.close()
    assert fake.log[-1] == f"delete {path}"


START = SavedState("init_from=runs/a@3", "tinker://a/weights/s", "runs/a", 3)


@pytest.mark.parametrize("optimizer", [False, True])
async def test_a_run_that_starts_from_weights_loads_them_again_when_it_has_lost_every_checkpoint(
    fake, monkeypatch, optimizer
):
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    policy = await PolicyTrainer.create(backend(fake), CONFIG, replace(START, optimizer=optimizer))
    await policy.reload("tinker://m/weights/own")
    await policy.reload(None)
    first = f"load {START.path}" if optimizer else f"load without optimizer {START.path}"
    assert [entry for entry in fake.log if entry.startswith(("load", "create"))] == [
        first, "load tinker://m/weights/own", first,
    ]  # fmt: skip
    assert policy.origin == "tinker://a/weights/s (init_from=runs/a@3, the state after step 3)"


@pytest.mark.parametrize("again", [False, True])
async def test_a_start_that_the_server_does_not_have_is_an_error_and_never_the_seed(fake, monkeypatch, again):
    policy = await PolicyTrainer.create(backend(fake), CONFIG, START)
    loaded = len(fake.log)
    response = httpx.Response(404, request=httpx.Request("GET", "http://x"))
    gone = tinker.NotFoundError("Checkpoint not found", response=response, body={"detail": "Checkpoint not found"})

    class Gone:
        def __await__(self):
            raise gone
            yield

    fake.get_weights_info_by_tinker_path = lambda path: Gone()
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    with pytest.raises(WeightsGone, match=rf"{START.given}: reading {START.path}: .*give a state that this server has"):
        await (policy.reload(None) if again else PolicyTrainer.create(backend(fake), CONFIG, START))
    assert fake.log[loaded:] == []


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"base_model": "other", "lora_rank": 32}, r"model_name=m: the checkpoint tinker://a/weights/s belongs to oth"),
        ({"base_model": "m", "lora_rank": 8}, r"lora_rank=32: the checkpoint tinker://a/weights/s has rank 8"),
    ],
)
async def test_a_start_of_another_model_or_rank_is_refused_before_it_is_loaded(fake, weights, words):
    fake.weights = SimpleNamespace(**weights)
    with pytest.raises(UserError, match=words):
        await PolicyTrainer.create(backend(fake), CONFIG, START)
    assert fake.log == ["await weights_info"]


async def test_weights_that_the_server_will_delete_are_warned_of(fake, caplog):
    policy = await PolicyTrainer.create(backend(fake), CONFIG)
    path = await policy.save(1)
    assert not caplog.text
    fake.listed = [SimpleNamespace(tinker_path=path, expires_at="2026-12-01")]
    await policy.saved.warn_of_expiry(path)
    assert f"{path}: the server deletes it at 2026-12-01" in caplog.text


async def test_a_step_that_the_server_counts_twice_is_noticed(fake):
    policy = await PolicyTrainer.create(backend(fake), CONFIG)
    counts = iter([1.0, 2.0, 4.0])

    def optim_step(adam: tinker.AdamParams) -> Answer:
        return Answer(fake.log, "optim_step", SimpleNamespace(metrics={"skyrl.ai/optimizer_step": next(counts)}))

    fake.optim_step = optim_step
    assert (await update(policy)).metrics["optim/server_step"] == 1
    await update(policy)
    with pytest.raises(ServerLost, match="counts 4 steps of these weights after 2 and one more"):
        await update(policy)


async def test_a_batch_ends_when_the_server_no_longer_knows_the_published_weights(fake):
    policy = await PolicyTrainer.create(backend(fake), CONFIG)
    published = await policy.publish(1)
    response = httpx.Response(404, request=httpx.Request("POST", "http://x"))

    async def sample(*_: Any) -> Any:
        raise tinker.NotFoundError("Sampling session not found", response=response, body={})

    fake.sample = sample
    ended = asyncio.Event()

    async def trials() -> None:
        try:
            with contextlib.suppress(tinker.NotFoundError):
                await published.sample([1], 1, None)
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ServerLost, match="sampling: the server does not know the published weights any more"):
        await run_until(trials(), *policy.losses("sampling"))
    assert ended.is_set()
    await policy.publish(2)
    assert await run_until(asyncio.sleep(0, "done"), *policy.losses("sampling")) == "done"
