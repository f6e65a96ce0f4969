"""save_weights_for_sampler, asample: what is sampled, its logprobs, and whose weights it comes from."""

import math

import numpy as np
import pytest
import tinker

from .parts import MAX_TOKENS, TOKENS, adam_step, datum, logprobs, output, sample, scored, settled


@pytest.fixture(scope="module")
def sampler(training) -> tinker.SamplingClient:
    return settled(training.save_weights_and_get_sampling_client())


def test_a_named_sampler_is_found_by_its_path(training, service):
    path = settled(training.save_weights_for_sampler("named")).path
    assert path == f"tinker://{training.model_id}/sampler_weights/named"
    client = settled(service.create_sampling_client(model_path=path))
    assert scored(client) == pytest.approx(logprobs(training), abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampled_logprobs_are_the_trainers(training, sampler, temperature):
    (sequence,) = sample(sampler, temperature=temperature)
    n = len(sequence.tokens)
    assert sequence.logprobs is not None and len(sequence.logprobs) == n > 0
    trained = logprobs(training, [*TOKENS, *sequence.tokens])[-n:]
    assert list(sequence.logprobs) == pytest.approx(trained, abs=1e-4)


def test_a_seed_repeats_its_samples(sampler):
    def tokens(seed: int) -> list[list[int]]:
        return [list(sequence.tokens) for sequence in sample(sampler, seed=seed, n=4)]

    assert tokens(1) == tokens(1) != tokens(2)
    assert len({tuple(answer) for answer in tokens(1)}) > 1


def test_temperature_0_takes_the_likeliest_token(sampler):
    (greedy,), (again,) = (sample(sampler, temperature=0.0, seed=seed) for seed in (1, 2))
    assert greedy.tokens == again.tokens
    others = [sequence for seed in range(3) for sequence in sample(sampler, seed=seed, n=4)]
    assert all(first(greedy) >= first(other) - 1e-4 for other in others)


def test_max_tokens_ends_an_answer(sampler):
    sequence = without_stop(sampler)
    assert len(sequence.tokens) == MAX_TOKENS and sequence.stop_reason == "length"


def first(sequence: tinker.SampledSequence) -> float:
    assert sequence.logprobs
    return sequence.logprobs[0]


def without_stop(sampler: tinker.SamplingClient) -> tinker.SampledSequence:
    """An answer that no token of its own ends."""
    return next(s for seed in range(20) for s in sample(sampler, seed=seed, n=4) if s.stop_reason == "length")


def test_a_stop_token_ends_an_answer_and_is_its_last(sampler):
    seed, whole = next((seed, s[0]) for seed in range(20) if len((s := sample(sampler, seed=seed))[0].tokens) > 3)
    stop = whole.tokens[2]
    (stopped,) = sample(sampler, seed=seed, stop=[stop])
    assert list(stopped.tokens) == list(whole.tokens[: whole.tokens.index(stop) + 1])
    assert stopped.stop_reason == "stop" and len(stopped.logprobs or []) == len(stopped.tokens)


@pytest.fixture
def ending(fresh) -> tuple[tinker.SamplingClient, int]:
    """A sampler that ends the text after TOKENS more often than not, and the token that ends it."""
    client = fresh()
    end = client.get_tokenizer().eos_token_id
    last = datum((*TOKENS, end), weights=[0.0] * (len(TOKENS) - 1) + [1.0])
    for _ in range(40):
        computed = client.forward_backward([last], "cross_entropy")
        settled(client.optim_step(tinker.AdamParams(learning_rate=1e-2)))
        if output(computed, "logprobs")[0][-1] > math.log(0.5):
            break
    return settled(client.save_weights_and_get_sampling_client()), end


def test_an_answer_ends_at_the_models_own_end_unless_stop_is_empty(ending):
    sampler, end = ending
    plain, strings, one, never = (sample(sampler, n=4, stop=stop) for stop in (None, ["not said"], "not said", []))
    ended = [answer for answer in plain if answer.stop_reason == "stop"]
    assert ended and all(answer.tokens[-1] == end and end not in answer.tokens[:-1] for answer in ended)
    assert tokens_of(plain) == tokens_of(strings) == tokens_of(one)
    assert [answer.stop_reason for answer in plain] == [answer.stop_reason for answer in strings]
    assert all(len(answer.tokens) == MAX_TOKENS and answer.stop_reason == "length" for answer in never)
    assert any(end in answer.tokens[:-1] for answer in never)


def tokens_of(answers: list[tinker.SampledSequence]) -> list[list[int]]:
    return [list(answer.tokens) for answer in answers]


def test_a_string_ends_an_answer(sampler, training):
    (whole,) = sample(sampler, temperature=0.0, stop=[])
    texts = [training.get_tokenizer().decode(list(whole.tokens[:count])) for count in range(1, MAX_TOKENS + 1)]
    count = next(n for n, text in enumerate(texts, 1) if n > 1 and "\ufffd" not in text and texts[n - 2] != text)
    (cut,) = sample(sampler, temperature=0.0, stop=[texts[count - 1], "not said"])
    assert list(cut.tokens) == list(whole.tokens[:count]) and cut.stop_reason == "stop"
    assert len(cut.logprobs or ()) == count


def test_given_tokens_are_scored_as_the_trainer_does(training, sampler):
    assert scored(sampler) == pytest.approx(logprobs(training), abs=1e-4)


def test_prompt_logprobs_come_with_a_sample_when_asked_for(sampler):
    params = tinker.SamplingParams(max_tokens=1, temperature=1.0, seed=0)
    prompt = tinker.ModelInput.from_ints(list(TOKENS))
    answer = settled(sampler.sample(prompt, 1, params, include_prompt_logprobs=True))
    first, *rest = answer.prompt_logprobs or []
    assert first is None and rest == pytest.approx(scored(sampler), abs=1e-4)


@pytest.mark.parametrize("new", [1, MAX_TOKENS])
def test_the_likeliest_tokens_of_a_prompt_are_scored_as_the_trainer_does(training, sampler, new):
    likeliest = 5
    params = tinker.SamplingParams(max_tokens=new, temperature=1.0, seed=0)
    prompt = tinker.ModelInput.from_ints(list(TOKENS))
    asked = sampler.sample(prompt, 1, params, include_prompt_logprobs=True, topk_prompt_logprobs=likeliest)
    answer = settled(asked)
    first, *rest = answer.topk_prompt_logprobs or []
    assert first is None and [len(pairs or ()) for pairs in rest] == [likeliest] * (len(TOKENS) - 1)
    ids, found = (np.array([[pair[part] for pair in pairs or ()] for pairs in rest]) for part in (0, 1))
    assert (np.diff(found) <= 0).all()
    targets = tinker.TensorData(data=ids.ravel().tolist(), dtype="int64", shape=list(ids.shape))
    one = tinker.Datum(model_input=prompt_without_last(), loss_fn_inputs={"target_tokens": targets})
    trained = output(training.forward([one], "cross_entropy"), "logprobs")[0]
    assert found.ravel().tolist() == pytest.approx(trained, abs=1e-4)
    given = logprobs(training)
    for token, score, pairs in zip(TOKENS[1:], given, rest, strict=True):
        likely = dict(pairs or ())
        assert likely.get(token, score) == pytest.approx(score, abs=1e-4)
        assert token in likely or score <= min(likely.values()) + 1e-4
    assert (answer.prompt_logprobs or [])[1:] == pytest.approx(given, abs=1e-4)
    assert answer.sequences[0].tokens


def prompt_without_last() -> tinker.ModelInput:
    return tinker.ModelInput.from_ints(list(TOKENS[:-1]))


def whole_numbers(table: np.ndarray, *, sparse: bool = False) -> tinker.TensorData:
    """`sparse`: only those from 0 on."""
    shape, given = list(table.shape), table >= 0
    if not sparse:
        return tinker.TensorData(data=table.ravel().tolist(), dtype="int64", shape=shape)
    starts, columns = [0, *np.cumsum(given.sum(axis=1)).tolist()], given.nonzero()[1].tolist()
    layout = {"sparse_crow_indices": starts, "sparse_col_indices": columns}
    return tinker.TensorData(data=table[given].tolist(), dtype="int64", shape=shape, **layout)


@pytest.mark.parametrize("sparse", [False, True])
def test_named_tokens_of_a_prompt_are_scored_as_the_trainer_does(training, sampler, sparse):
    ids = np.full((len(TOKENS) - 1, 3), -1)
    ids[4], ids[-1, 1] = (TOKENS[5], 3, 4), TOKENS[-1]
    params, prompt = tinker.SamplingParams(max_tokens=1), tinker.ModelInput.from_ints(list(TOKENS))
    asked = whole_numbers(ids, sparse=sparse)
    answer = settled(sampler.sample(prompt, 1, params, target_prompt_logprobs=asked))
    assert answer.prompt_logprobs is None and len(answer.sequences[0].tokens) == 1
    found = answer.target_prompt_logprobs
    assert found is not None and list(found.shape or ()) == list(ids.shape)
    assert found.sparse_col_indices == asked.sparse_col_indices
    targets = whole_numbers(np.maximum(ids, 0))
    one = tinker.Datum(model_input=prompt_without_last(), loss_fn_inputs={"target_tokens": targets})
    trained = np.array(output(training.forward([one], "cross_entropy"), "logprobs")[0]).reshape(ids.shape)
    wanted = trained[ids >= 0] if sparse else np.where(ids >= 0, trained, 0.0)
    assert np.ravel(found.data).tolist() == pytest.approx(np.ravel(wanted).tolist(), abs=1e-4)


@pytest.mark.parametrize("shape", [[24, 200], [23, 2], [24]])
def test_named_tokens_of_another_shape_than_the_prompt_are_refused(sampler, shape):
    asked = tinker.TensorData(data=[1] * int(np.prod(shape)), dtype="int64", shape=shape)
    params, prompt = tinker.SamplingParams(max_tokens=1), tinker.ModelInput.from_ints(list(TOKENS))
    with pytest.raises((tinker.BadRequestError, ValueError), match=r"target_prompt_logprobs.*shape"):
        settled(sampler.sample(prompt, 1, params, target_prompt_logprobs=asked))


def test_only_the_last_prompt_tokens_are_scored_when_asked_for(sampler):
    prompt = tinker.ModelInput.from_ints(list(TOKENS))
    found = settled(sampler.compute_logprobs(prompt, prompt_logprobs_last_n=2))
    assert found[:-2] == [None] * (len(TOKENS) - 2)
    assert found[-2:] == pytest.approx(scored(sampler)[-2:], abs=1e-4)
    params = tinker.SamplingParams(max_tokens=1)
    more = {"topk_prompt_logprobs": 3, "prompt_logprobs_last_n": 2}
    answer = settled(sampler.sample(prompt, 1, params, include_prompt_logprobs=True, **more))
    assert [pairs is not None for pairs in answer.topk_prompt_logprobs or ()] == [False] * 23 + [True] * 2


def test_the_base_model_stays_itself_while_adapters_train(fresh, base_sampler):
    before = scored(base_sampler)
    client = fresh()
    adam_step(client)
    trained = scored(settled(client.save_weights_and_get_sampling_client()))
    assert max(abs(a - b) for a, b in zip(before, trained, strict=True)) > 0.01
    assert scored(base_sampler) == pytest.approx(before, abs=1e-5)


def test_a_used_sampler_is_a_frozen_snapshot(fresh):
    client = fresh()
    adam_step(client)
    sampler = settled(client.save_weights_and_get_sampling_client())
    before, answer = scored(sampler), sample(sampler)[0].tokens
    for _ in range(3):
        adam_step(client)
    assert scored(sampler) == pytest.approx(before, abs=1e-5)
    assert sample(sampler)[0].tokens == answer


def test_sampling_old_weights_late_throws_no_training_away(fresh):
    client = fresh()
    never_used = settled(client.save_weights_and_get_sampling_client())
    start = logprobs(client)
    for _ in range(3):
        adam_step(client)
    trained = logprobs(client)
    assert sum(trained) > sum(start) + 0.1
    assert scored(never_used) == pytest.approx(start, abs=1e-4)
    assert logprobs(client) == pytest.approx(trained, abs=1e-5)
    newest = settled(client.save_weights_and_get_sampling_client())
    assert scored(newest) == pytest.approx(trained, abs=1e-4)


def test_samplers_asked_at_once_answer_each_from_its_own_weights(fresh, base_sampler):
    clients = [fresh() for _ in range(3)]
    for steps, client in enumerate(clients):
        for _ in range(steps):
            adam_step(client)
    samplers = [settled(client.save_weights_and_get_sampling_client()) for client in clients]
    asked = [s.compute_logprobs(tinker.ModelInput.from_ints(list(TOKENS))) for s in (*samplers, base_sampler)]
    answers = [settled(future)[1:] for future in asked]
    for answer, client in zip(answers, clients, strict=False):
        assert answer == pytest.approx(logprobs(client), abs=1e-4)
    assert answers[-1] == pytest.approx(answers[0], abs=1e-4)  # no step taken: still the base model


def test_a_sampler_outlives_its_model(fresh, unload):
    client = fresh()
    adam_step(client)
    sampler = settled(client.save_weights_and_get_sampling_client())
    before = scored(sampler)
    assert unload(client).status_code == 200
    fresh()  # takes its slot
    assert scored(sampler) == pytest.approx(before, abs=1e-5)
