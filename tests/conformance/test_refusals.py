"""What must fail, and how: within seconds, with a status that the SDK does not retry and the cause in its text."""

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import tinker

from .parts import LIMIT_SEC, RANK, TOKENS, datum, logprobs, refused, sample, scored, settled, weighted

N = len(TOKENS) - 1
LOGPROBS, ADVANTAGES = [-1.0] * N, [1.0] * N


def raw(targets: list[int], shape: list[int] | None = None, **inputs: list[float]) -> tinker.Datum:
    """N input tokens with these targets, however many."""
    floats = {name: tinker.TensorData(data=values, dtype="float32") for name, values in inputs.items()}
    tensors = {"target_tokens": tinker.TensorData(data=targets, dtype="int64", shape=shape)} if targets else {}
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(list(TOKENS[:-1])), loss_fn_inputs={**tensors, **floats}
    )


CE, IS, PPO = "cross_entropy", "importance_sampling", "ppo"
MALFORMED = {
    "fewer targets than tokens": (CE, raw(list(TOKENS[1:-3]), weights=[1.0] * (N - 3)), "target_tokens|length"),
    "more targets than tokens": (CE, raw([*TOKENS[1:], 5, 6], weights=[1.0] * (N + 2)), "target_tokens|length"),
    "fewer weights than targets": (CE, datum(TOKENS, weights=[1.0] * (N - 2)), "weights"),
    "two targets a token for a sampled loss": (
        IS,
        raw([*TOKENS[1:], *TOKENS[1:]], shape=[N, 2], logprobs=LOGPROBS, advantages=ADVANTAGES),
        "target_tokens.*only cross_entropy",
    ),
    "targets of another shape": (CE, raw([*TOKENS[1:], *TOKENS[1:]], shape=[2, N]), "target_tokens|length"),
    "weights of another shape than targets": (
        CE,
        raw([*TOKENS[1:], *TOKENS[1:]], shape=[N, 2], weights=[1.0] * N),
        "weights",
    ),
    "no targets": (CE, raw([], weights=[1.0] * N), "target_tokens"),
    "no logprobs": (IS, datum(TOKENS, advantages=ADVANTAGES), "logprobs"),
    "no advantages": (PPO, datum(TOKENS, logprobs=LOGPROBS), "advantages"),
    "fewer logprobs than targets": (PPO, datum(TOKENS, logprobs=LOGPROBS[:-1], advantages=ADVANTAGES), "logprobs"),
    "a weight that is NaN": (CE, weighted(weight=math.nan), "weights|finite|nan"),
    "an infinite advantage": (IS, datum(TOKENS, logprobs=LOGPROBS, advantages=[math.inf] * N), "advantages|finite"),
    "a token beyond the vocabulary": (CE, weighted([*TOKENS[:-2], 10**6, 7]), "1000000"),
    "a target beyond the vocabulary": (CE, weighted([*TOKENS[:-1], 10**6]), "1000000"),
    "a negative token": (CE, weighted([*TOKENS[:-2], -1, 7]), "-1"),
}


@pytest.fixture(scope="module")
def training(service, base_model, unload) -> Iterator[tinker.TrainingClient]:
    """Not the one of the other files: a request that is not answered holds up all later ones of its client."""
    client = settled(service.create_lora_training_client(base_model, rank=RANK, seed=0))
    yield client
    unload(client)


def test_malformed_datums_are_refused_and_change_nothing(training, base_sampler, subtests):
    before, base = logprobs(training), scored(base_sampler)
    for name, (loss_fn, malformed, words) in MALFORMED.items():
        good = weighted() if loss_fn == CE else datum(TOKENS, logprobs=LOGPROBS, advantages=ADVANTAGES)
        with subtests.test(name):
            refused(lambda: training.forward_backward([good, malformed], loss_fn), words)  # noqa: B023
    settled(training.optim_step(tinker.AdamParams(learning_rate=0.0)))
    assert logprobs(training) == pytest.approx(before, abs=1e-5)
    assert scored(base_sampler) == pytest.approx(base, abs=1e-5)


def test_no_data_is_refused(training):
    with pytest.raises(ValueError, match="No data"):
        settled(training.forward_backward([], "cross_entropy"))


def test_a_sequence_beyond_the_context_is_refused(training, rest, base_model):
    models = settled(rest.get_server_capabilities()).supported_models
    limit = next(model.max_context_length for model in models if model.model_name == base_model)
    assert limit is not None
    long = [7] * (limit + 2)
    refused(lambda: training.forward_backward([weighted(long)], "cross_entropy"), f"{limit}")


@pytest.mark.parametrize(
    ("loss_fn", "words"), [("stable_reinforce", "not published"), ("custom", "custom"), ("ppo_critic", "critic")]
)
def test_a_loss_of_the_sdk_that_is_not_here_is_refused_by_its_name(training, loss_fn, words):
    refused(lambda: training.forward_backward([weighted()], loss_fn), words)


@pytest.mark.parametrize("loss_fn", ["no_such_loss", "dpo"])
def test_an_unknown_loss_is_refused_with_those_there_are(training, loss_fn):
    refused(lambda: training.forward_backward([weighted()], loss_fn), "importance_sampling")


@pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo"])
def test_an_unknown_loss_setting_is_refused_by_its_name(training, loss_fn):
    one = datum(TOKENS, logprobs=LOGPROBS, advantages=ADVANTAGES)
    refused(lambda: training.forward_backward([one], loss_fn, {"clip_hi": 1.2}), "clip_hi")


def test_another_base_model_is_refused_with_both_names(service, base_model):
    text = refused(lambda: service.create_lora_training_client("Qwen/Qwen3-4B", rank=RANK), "Qwen/Qwen3-4B")
    assert base_model in text


def test_sampling_another_base_model_is_refused(service):
    def ask() -> tinker.APIFuture[Any]:
        client = settled(service.create_sampling_client(base_model="Qwen/Qwen3-4B"))
        return client.sample(tinker.ModelInput.from_ints([1, 2]), 1, tinker.SamplingParams(max_tokens=1))

    refused(ask, "Qwen/Qwen3-4B")


@pytest.mark.parametrize("rank", [0, 10**4])
def test_a_rank_out_of_range_is_refused_with_the_range(service, base_model, rank):
    refused(lambda: service.create_lora_training_client(base_model, rank=rank), rf"rank.*{rank}|{rank}.*rank")


def test_one_model_too_many_is_refused_and_the_others_live_on(service, base_model, fresh, unload):
    survivor = fresh()

    def ask() -> tinker.APIFuture[Any]:
        for _ in range(40):
            made.append(settled(service.create_lora_training_client(base_model, rank=RANK)))
        raise AssertionError("40 models more than the server should hold")

    made: list[tinker.TrainingClient] = []
    try:
        refused(ask, "maximum number|adapter|slot")
        assert len(logprobs(survivor)) == N
    finally:
        for client in made:
            unload(client)
    fresh()


def test_a_model_that_never_was_is_refused(server_url):
    for path, body in {
        "optim_step": {"adam_params": {}},
        "save_weights": {"path": "x"},
        "save_weights_for_sampler": {"path": "x"},
        "unload_model": {},
        "get_info": {},
    }.items():
        answer = httpx.post(
            f"{server_url}/api/v1/{path}", json={"model_id": "model_00000000", **body}, timeout=LIMIT_SEC
        )
        assert answer.status_code in (400, 404), f"{path}: {answer.text}"
        assert "not found" in answer.text, path


def test_unloading_twice_is_refused(server_url, fresh, unload):
    client = fresh()
    assert unload(client).status_code == 200
    assert unload(client).status_code in (400, 404)


@pytest.mark.parametrize("save", ["save_state", "save_weights_for_sampler"])
def test_a_name_is_saved_only_once(fresh, save):
    client = fresh()
    settled(getattr(client, save)("name"))
    refused(lambda: getattr(client, save)("name"), "name.*exists|exists.*name")
    settled(getattr(client, save)("another"))


def test_weights_are_loaded_only_into_a_fresh_model(fresh):
    client = fresh()
    path = settled(client.save_state("x")).path
    refused(lambda: client.load_state_with_optimizer(path), "load")
    fresh_client = fresh()
    settled(fresh_client.load_state_with_optimizer(path))
    refused(lambda: fresh_client.load_state_with_optimizer(path), "load")


@pytest.mark.parametrize("name", ["never-saved", "deleted"])
def test_weights_that_are_not_there_are_refused(fresh, service, rest, name):
    client = fresh()
    path = f"tinker://{client.model_id}/weights/{name}"
    if name == "deleted":
        assert settled(client.save_state(name)).path == path
        settled(rest.delete_checkpoint_from_tinker_path(path))
    for ask in (
        service.create_training_client_from_state,
        service.create_training_client_from_state_with_optimizer,
        rest.get_weights_info_by_tinker_path,
        rest.delete_checkpoint_from_tinker_path,
    ):
        refused(lambda ask=ask: ask(path), "not found")


def test_a_restore_that_was_refused_takes_no_slot(service, fresh):
    path = f"tinker://{fresh().model_id}/weights/none"
    for _ in range(8):  # as many as the server has slots
        refused(lambda: service.create_training_client_from_state(path), "not found")
    fresh()


@pytest.mark.parametrize("name", ["never-saved", "deleted"])
def test_a_sampler_that_is_not_there_is_refused(fresh, service, rest, name):
    client = fresh()
    path = f"tinker://{client.model_id}/sampler_weights/{name}"
    if name == "deleted":
        settled(client.save_weights_for_sampler(name))
        settled(rest.delete_checkpoint_from_tinker_path(path))

    def ask() -> tinker.APIFuture[Any]:
        sampler = settled(service.create_sampling_client(model_path=path))
        return sampler.sample(tinker.ModelInput.from_ints([1, 2]), 1, tinker.SamplingParams(max_tokens=1))

    refused(ask, "not found|gone")


def test_a_state_of_another_rank_is_refused(service, base_model, fresh, unload):
    path = settled(fresh().save_state("rank")).path
    other = settled(service.create_lora_training_client(base_model, rank=RANK // 2))
    refused(lambda: other.load_state_with_optimizer(path), "rank")
    unload(other)


@pytest.mark.parametrize(
    ("asked", "words"), [({"topk_prompt_logprobs": 10**4}, "topk"), ({"prompt_logprobs_last_n": 25}, "24")]
)
def test_scores_that_a_prompt_cannot_have_are_refused(base_sampler, asked, words):
    prompt, params = tinker.ModelInput.from_ints(list(TOKENS)), tinker.SamplingParams(max_tokens=1)
    refused(lambda: base_sampler.sample(prompt, 1, params, include_prompt_logprobs=True, **asked), words)


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_max_tokens_must_be_positive(base_sampler, max_tokens):
    prompt, params = tinker.ModelInput.from_ints([1, 2]), tinker.SamplingParams(max_tokens=max_tokens)
    refused(lambda: base_sampler.sample(prompt, 1, params), "max_tokens")


@pytest.mark.parametrize("tokens", [[5, 10**6], [5, -1], []])
def test_a_prompt_outside_the_vocabulary_is_refused_and_the_next_is_answered(base_sampler, tokens):
    params = tinker.SamplingParams(max_tokens=8)
    refused(lambda: base_sampler.sample(tinker.ModelInput.from_ints(tokens), 1, params), "token|empty|prompt")
    assert len(sample(base_sampler)) == 1


@pytest.mark.parametrize("params", [{"learning_rate": -1.0}, {"beta1": 1.0}, {"weight_decay": -1.0}])
def test_an_impossible_optimizer_setting_is_refused_by_its_name(training, params):
    (name,) = params
    refused(lambda: training.optim_step(tinker.AdamParams(**params)), name)


def test_a_learning_rate_that_is_nan_is_refused(training):
    before = logprobs(training)
    with pytest.raises((tinker.TinkerError, ValueError)):
        settled(training.optim_step(tinker.AdamParams(learning_rate=math.nan)))
    assert logprobs(training) == pytest.approx(before, abs=1e-5)


def test_what_is_no_request_is_refused(server_url):
    for path in ("create_model", "forward_backward", "optim_step", "asample"):
        answer = httpx.post(f"{server_url}/api/v1/{path}", json={"nonsense": 1}, timeout=LIMIT_SEC)
        assert 400 <= answer.status_code < 500, path
