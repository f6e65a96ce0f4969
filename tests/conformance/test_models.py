"""healthz, capabilities, create_model, get_info, retrieve_future, unload_model."""

import httpx
import pytest

from .parts import LIMIT_SEC, RANK, TOKENS, adam_step, descend, logprobs, refused, scored, settled, weighted


def test_healthz_answers_ok(server_url):
    answer = httpx.get(f"{server_url}/api/v1/healthz", timeout=LIMIT_SEC)
    assert answer.status_code == 200 and answer.json()["status"] == "ok"


def test_capabilities_name_the_model_and_its_context_length(rest, base_model):
    served = {model.model_name: model for model in settled(rest.get_server_capabilities()).supported_models}
    assert (served[base_model].max_context_length or 0) >= len(TOKENS)


def test_a_created_model_says_what_it_is(training, rest, base_model):
    info = training.get_info()
    assert (info.model_id, info.model_data.model_name) == (training.model_id, base_model)
    run = settled(rest.get_training_run(training.model_id))
    assert (run.training_run_id, run.base_model, run.lora_rank) == (training.model_id, base_model, RANK)


def test_what_a_client_says_of_its_model_is_kept(service, rest, base_model, unload):
    said = {"renderer_name": "qwen3", "note": "für alle"}
    client = settled(service.create_lora_training_client(base_model, rank=RANK, user_metadata=said))
    path = settled(client.save_state("said")).path
    restored = settled(service.create_training_client_from_state(path, user_metadata={"from": path}))
    for one, expected in ((client, said), (restored, {"from": path})):
        assert settled(rest.get_training_run(one.model_id)).user_metadata == expected
        unload(one)
    listed = settled(rest.list_training_runs(limit=100)).training_runs
    assert {run.training_run_id: run.user_metadata for run in listed}[client.model_id] == said
    assert settled(rest.get_training_run_by_tinker_path(path)).user_metadata == said


def test_a_fresh_adapter_is_the_base_model(fresh, base_sampler):
    assert logprobs(fresh()) == pytest.approx(scored(base_sampler), abs=1e-4)


def test_the_same_seed_starts_from_the_same_weights(fresh):
    one, other = fresh(), fresh()
    for client in (one, other):
        descend(client, [weighted()])
    assert logprobs(one) == pytest.approx(logprobs(other), abs=1e-5)


def test_adapters_train_apart(fresh):
    still, trained = fresh(), fresh()
    before = logprobs(still)
    adam_step(trained)
    assert sum(logprobs(trained)) > sum(before) + 0.1
    assert logprobs(still) == pytest.approx(before, abs=1e-5)


def test_the_tokenizer_is_the_models(training):
    tokenizer = training.get_tokenizer()
    text = "The answer to 2 plus 3 is 5."
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_answer_to_a_request_can_be_fetched_twice(server_url, fresh):
    """The raw API, without the SDK: an answer that was lost on its way is asked for again."""
    client = fresh()
    body = {"model_id": client.model_id, "path": "twice", "type": "save_weights"}
    with httpx.Client(base_url=f"{server_url}/api/v1", timeout=LIMIT_SEC) as http:
        promise = http.post("/save_weights", json=body).raise_for_status().json()
        answers = [http.post("/retrieve_future", json={"request_id": promise["request_id"]}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json()["path"] for answer in answers] == [f"tinker://{client.model_id}/weights/twice"] * 2


@pytest.mark.parametrize("request_id", ["999999999", "no-number"])
def test_a_request_that_never_was_is_refused(server_url, request_id):
    answer = httpx.post(f"{server_url}/api/v1/retrieve_future", json={"request_id": request_id}, timeout=LIMIT_SEC)
    assert 400 <= answer.status_code < 500 and answer.status_code != 408, answer.text


def test_an_unloaded_model_trains_no_more_and_its_slot_is_free(fresh, unload):
    client = fresh()
    assert unload(client).status_code == 200
    refused(lambda: client.forward_backward([weighted()], "cross_entropy"), "not loaded|not found|unloaded")
    for _ in range(3):
        unload(fresh())
