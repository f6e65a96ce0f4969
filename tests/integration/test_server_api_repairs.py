"""Repairs of the server's API: each defect is there on the stock server and not on ours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker

from .server_parts import Raw, refused

TOKENS = list(range(5, 29))
N = len(TOKENS) - 1
BEYOND = 10**6  # no vocabulary has that id
HOUR = 3600


def opened(url: str, model: Path) -> Iterator[Raw]:
    raw = Raw(url, model)
    yield raw
    raw.unload()


@pytest.fixture(scope="module")
def stock(stock_url: str, tiny_model_dir: Path) -> Iterator[Raw]:
    yield from opened(stock_url, tiny_model_dir)


@pytest.fixture(scope="module")
def ours(server_url: str, tiny_model_dir: Path) -> Iterator[Raw]:
    yield from opened(server_url, tiny_model_dir)


@pytest.fixture(scope="module")
def stock_adapter(stock: Raw) -> str:
    return stock.adapter()


@pytest.fixture(scope="module")
def our_adapter(ours: Raw) -> str:
    return ours.adapter()


def test_the_server_says_what_it_is(ours: Raw, tiny_model_dir: Path) -> None:
    answer = ours.http.get("/healthz").json()
    server = answer["server"]
    assert (answer["status"], server["name"], server["skyrl"]) == ("ok", "harbortrainer", "0.4.0")
    assert (server["base_model"], server["max_lora_rank"], server["max_lora_adapters"]) == (str(tiny_model_dir), 16, 8)
    assert {"sdk", "names", "loss_sum"} <= set(server["repairs"])


def test_a_model_asked_for_twice_is_one_model(ours: Raw) -> None:
    first = ours.create()
    ours.models.pop()
    assert ours.create().json()["request_id"] == first.json()["request_id"]


# -- base model, datums, prompts


def test_another_base_model(stock: Raw, ours: Raw, tiny_model_dir: Path) -> None:
    assert stock.create("Qwen/Qwen3-4B").status_code == 200
    refused(ours.create("Qwen/Qwen3-4B"), "Qwen/Qwen3-4B", str(tiny_model_dir))
    sampler = {"sampling_session_seq_id": 0, "base_model": "Qwen/Qwen3-4B"}
    stock_answer = stock.post("create_sampling_session", session_id=stock.session_id, **sampler)
    assert stock_answer.status_code == 200
    refused(ours.post("create_sampling_session", session_id=ours.session_id, **sampler), "Qwen/Qwen3-4B")


def datum(tokens: list[int] = TOKENS, **inputs: Any) -> tinker.Datum:
    """None leaves an input out."""
    full = {"target_tokens": np.array(tokens[1:]), "weights": np.ones(N, np.float32)} | inputs
    kept: dict[str, Any] = {name: value for name, value in full.items() if value is not None}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=kept)


MALFORMED = {
    "no targets": (datum(target_tokens=None), "cross_entropy", 500, "target_tokens is missing"),
    "short weights": (datum(weights=np.ones(N - 2, np.float32)), "cross_entropy", 200, f"length {N - 2}"),
    "NaN": (datum(weights=np.full(N, np.nan, np.float32)), "cross_entropy", 200, "weights: not all finite"),
    "no logprobs": (datum(advantages=np.ones(N, np.float32)), "importance_sampling", 200, "logprobs is missing"),
    "no advantages": (datum(logprobs=np.ones(N, np.float32)), "ppo", 200, "advantages is missing"),
    "unknown input": (datum(mask=np.ones(N, np.float32)), "cross_entropy", 200, "mask"),
    "id beyond": (datum([*TOKENS[:-2], BEYOND, 7]), "cross_entropy", 200, f"token {BEYOND} at position {N - 1}"),
    "target beyond": (datum([*TOKENS[:-1], BEYOND]), "cross_entropy", 200, f"target_tokens: token {BEYOND}"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_datum(stock: Raw, ours: Raw, stock_adapter: str, our_adapter: str, name: str) -> None:
    malformed, loss_fn, stock_status, words = MALFORMED[name]
    assert stock.forward(stock_adapter, malformed, loss_fn).status_code == stock_status
    refused(ours.forward(our_adapter, malformed, loss_fn), "datum 0", words)


def test_a_good_datum_passes(ours: Raw, our_adapter: str) -> None:
    assert ours.settle(ours.forward(our_adapter, datum())).status_code == 200


def test_a_prompt_beyond_the_vocabulary(stock: Raw, ours: Raw) -> None:
    assert stock.sample([5, BEYOND], max_tokens=1).status_code == 200
    refused(ours.sample([5, BEYOND], max_tokens=1), str(BEYOND), "position 1")
    refused(ours.sample([], max_tokens=1), "empty")


def test_impossible_sampling_settings(ours: Raw) -> None:
    for name, value in (("temperature", -1), ("top_p", 0), ("top_k", -2), ("max_tokens", 0)):
        refused(ours.sample([5], **({"max_tokens": 1} | {name: value})), f"{name}={value}")


# -- names and requests sent again


@pytest.mark.parametrize("call", ["save_weights", "save_weights_for_sampler"])
def test_a_name_saved_twice(stock: Raw, ours: Raw, stock_adapter: str, our_adapter: str, call: str) -> None:
    for raw, model_id, status in ((stock, stock_adapter, 409), (ours, our_adapter, 400)):
        raw.settle(raw.post(call, model_id=model_id, path="twice")).raise_for_status()
        answer = raw.post(call, model_id=model_id, path="twice")
        assert answer.status_code == status, answer.text
        assert "twice" in answer.text


def test_overwriting_on_purpose(ours: Raw, our_adapter: str) -> None:
    for _ in range(2):
        saved = ours.post("save_weights", model_id=our_adapter, path="over", overwrite=True)
        assert ours.settle(saved).status_code == 200


@pytest.mark.parametrize("call", ["save_weights", "save_weights_for_sampler"])
def test_a_save_whose_answer_was_lost(stock: Raw, ours: Raw, call: str) -> None:
    for raw, works in ((stock, False), (ours, True)):
        body = {"model_id": raw.adapter(), "path": "lost", "seq_id": 7}
        first, again = raw.post(call, **body), raw.post(call, **body)
        assert (again.status_code == 200) == works, again.text
        if works:
            assert again.json()["request_id"] == first.json()["request_id"]


def test_a_number_used_for_two_requests(stock: Raw, ours: Raw, stock_adapter: str, our_adapter: str) -> None:
    for raw, model_id, status in ((stock, stock_adapter, 409), (ours, our_adapter, 400)):
        for rate, expected in ((0.0, 200), (1e-9, status)):
            answer = raw.post("optim_step", model_id=model_id, seq_id=900, adam_params={"learning_rate": rate})
            assert answer.status_code == expected, answer.text


def test_saving_a_model_that_is_not_loaded(ours: Raw) -> None:
    model_id = ours.adapter()
    ours.settle(ours.post("unload_model", model_id=model_id)).raise_for_status()
    refused(ours.post("save_weights", model_id=model_id, path="x"), "not loaded")
    refused(ours.post("unload_model", model_id=model_id), "not loaded")


# -- capabilities, time to live, errors


def test_the_context_limit_is_reported(stock: Raw, ours: Raw) -> None:
    (stock_model,) = stock.http.get("/get_server_capabilities").json()["supported_models"]
    (our_model,) = ours.http.get("/get_server_capabilities").json()["supported_models"]
    assert "max_context_length" not in stock_model
    assert our_model["max_context_length"] == ours.http.get("/healthz").json()["server"]["context_limit"] >= 4096


def test_a_time_to_live_is_reported_and_can_be_changed(
    stock: Raw, ours: Raw, stock_adapter: str, our_adapter: str
) -> None:
    def expiry(raw: Raw, model_id: str) -> Any:
        listed = raw.http.get(f"/training_runs/{model_id}/checkpoints").json()["checkpoints"]
        return next(one.get("expires_at") for one in listed if one["tinker_path"].endswith("/brief"))

    for raw, model_id in ((stock, stock_adapter), (ours, our_adapter)):
        raw.settle(raw.post("save_weights", model_id=model_id, path="brief", ttl_seconds=HOUR)).raise_for_status()
    assert expiry(stock, stock_adapter) is None
    assert expiry(ours, our_adapter) is not None
    path = f"/training_runs/{our_adapter}/checkpoints/weights/brief/ttl"
    assert ours.http.put(path, json={"ttl_seconds": None}).status_code == 200
    assert expiry(ours, our_adapter) is None
    refused(ours.post("save_weights", model_id=our_adapter, path="never", ttl_seconds=0), "ttl_seconds=0")


def test_errors_of_a_request_are_not_the_servers(stock: Raw, ours: Raw, stock_adapter: str, our_adapter: str) -> None:
    nan = '{"model_id": "%s", "adam_params": {"learning_rate": NaN}}'
    json = {"Content-Type": "application/json"}
    assert stock.post("retrieve_future", request_id="x").status_code == 500
    refused(ours.post("retrieve_future", request_id="x"))
    assert stock.http.post("/optim_step", content=nan % stock_adapter, headers=json).status_code == 500
    refused(ours.http.post("/optim_step", content=nan % our_adapter, headers=json), "learning_rate")
