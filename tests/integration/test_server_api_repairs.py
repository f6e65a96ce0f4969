"""Repairs of the server's API: each defect is on the published server (at night) and not on ours."""

import contextlib
import http.client
import json
import math
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from body_limit import MOST, MOST_TRAINING

from tests.conftest import SMALL_SERVER
from tests.support import small_server
from tests.support.server_parts import Raw, awaited, refused

TOKENS = list(range(5, 29))
N = len(TOKENS) - 1
BEYOND = 10**6  # no vocabulary has that id
HOUR = 3600
OURS = pytest.mark.parametrize("server", ["server_url"], indirect=True)


@pytest.fixture(scope="module", params=["server_url", "stock_url"])
def server(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def repaired(server: str) -> bool:
    return server == "server_url"


@pytest.fixture(scope="module")
def raw(server: str, request: pytest.FixtureRequest, tiny_model_dir: Path) -> Iterator[Raw]:
    session = Raw(request.getfixturevalue(server), tiny_model_dir)
    yield session
    session.unload()


@pytest.fixture(scope="module")
def adapter(raw: Raw) -> str:
    return raw.adapter()


@OURS
def test_the_server_says_what_it_is(raw: Raw, tiny_model_dir: Path) -> None:
    answer = raw.http.get("/healthz").json()
    server = answer["server"]
    assert (answer["status"], server["name"], server["skyrl"]) == ("ok", "harbortrainer", "0.4.0")
    assert (server["base_model"], server["max_lora_rank"], server["max_lora_adapters"]) == (str(tiny_model_dir), 16, 8)
    assert {"sdk", "names", "loss_sum"} <= set(server["repairs"])
    assert re.fullmatch("[0-9a-f]{12}", server["base_weights"])


@OURS
def test_a_model_asked_for_twice_is_one_model(raw: Raw) -> None:
    first = raw.create()
    raw.models.pop()
    assert raw.create().json()["request_id"] == first.json()["request_id"]


# -- datums, prompts


def datum(tokens: list[int] = TOKENS, **inputs: Any) -> tinker.Datum:
    """None leaves an input out."""
    full = {"target_tokens": np.array(tokens[1:]), "weights": np.ones(N, np.float32)} | inputs
    kept: dict[str, Any] = {name: value for name, value in full.items() if value is not None}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=kept)


@OURS
def test_an_input_that_no_loss_reads_is_refused_and_a_good_datum_passes(raw: Raw, adapter: str) -> None:
    refused(raw.forward(adapter, datum(mask=np.ones(N, np.float32))), "datum 0", "mask")
    assert raw.settle(raw.forward(adapter, datum())).status_code == 200


def test_a_prompt_beyond_the_vocabulary(raw: Raw, repaired: bool) -> None:
    answer = raw.sample([5, BEYOND], max_tokens=1)
    if repaired:
        refused(answer, str(BEYOND), "position 1")
        refused(raw.sample([], max_tokens=1), "empty")
    else:
        assert answer.status_code == 200


@OURS
def test_impossible_sampling_settings(raw: Raw) -> None:
    for name, value in (("temperature", -1), ("top_p", 0), ("top_k", -2), ("max_tokens", 0)):
        refused(raw.sample([5], **({"max_tokens": 1} | {name: value})), f"{name}={value}")


@OURS
@pytest.mark.parametrize(
    ("n", "max_tokens", "words"),
    [(10_000_000, 2, "num_samples=10000000: must be from 1 to 1024"), (1024, 32_768, "more than 16777216 tokens")],
)
def test_more_samples_than_an_answer_can_hold(
    raw: Raw, tiny_model_dir: Path, n: int, max_tokens: int, words: str
) -> None:
    prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
    of: dict[str, Any] = {"base_model": str(tiny_model_dir), "prompt": prompt, "num_samples": n}
    refused(raw.post("asample", **of, sampling_params={"max_tokens": max_tokens}), words)


@OURS
def test_a_temperature_that_sqlite_cannot_read_does_not_end_the_engine(raw: Raw, tiny_model_dir: Path) -> None:
    prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
    params = {"max_tokens": 2, "temperature": math.inf}
    body = json.dumps({"base_model": str(tiny_model_dir), "prompt": prompt, "sampling_params": params})
    refused(raw.http.post("/asample", content=body, headers={"Content-Type": "application/json"}), "temperature=inf")
    raw.settle(raw.sample(TOKENS, max_tokens=2)).raise_for_status()


@OURS
@pytest.mark.parametrize("path", ["/asample", "/forward_backward"])
def test_a_body_that_would_fill_the_memory_is_refused(raw: Raw, path: str) -> None:
    most = MOST_TRAINING if path == "/forward_backward" else MOST
    connection = http.client.HTTPConnection(raw.url.removeprefix("http://"), timeout=600)
    with contextlib.closing(connection):
        connection.putrequest("POST", f"/api/v1{path}")
        connection.putheader("Content-Length", str(most + 1))
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 413 and f"at most {most}" in answer.read().decode()


@OURS
def test_a_body_without_a_length_is_read_up_to_the_limit(raw: Raw) -> None:
    parts = (b" " * (1 << 20) for _ in range((MOST >> 20) + 1))
    answer = raw.http.post("/asample", content=parts, headers={"Content-Type": "application/json"})
    refused(answer, "error parsing the body")  # not: "JSON decode error", for which it would have been read


@OURS
def test_an_id_beyond_the_database_keeps_no_other_client_from_its_results(raw: Raw) -> None:
    refused(raw.post("retrieve_future", request_id=str(2**63)), "Future not found")
    refused(raw.post("retrieve_future", request_id=str(2**62)), "Future not found")


# -- names and requests sent again


@pytest.mark.parametrize("call", ["save_weights", "save_weights_for_sampler"])
def test_a_name_saved_twice(raw: Raw, repaired: bool, adapter: str, call: str) -> None:
    raw.settle(raw.post(call, model_id=adapter, path="twice")).raise_for_status()
    answer = raw.post(call, model_id=adapter, path="twice")
    assert answer.status_code == (400 if repaired else 409), answer.text
    assert "twice" in answer.text


@OURS
def test_overwriting_on_purpose(raw: Raw, adapter: str) -> None:
    for _ in range(2):
        saved = raw.post("save_weights", model_id=adapter, path="over", overwrite=True)
        assert raw.settle(saved).status_code == 200


@pytest.mark.parametrize("call", ["save_weights", "save_weights_for_sampler"])
def test_a_save_whose_answer_was_lost(raw: Raw, repaired: bool, call: str) -> None:
    body = {"model_id": raw.adapter(), "path": "lost", "seq_id": 7}
    first, again = raw.post(call, **body), raw.post(call, **body)
    assert (again.status_code == 200) is repaired, again.text
    if repaired:
        assert again.json()["request_id"] == first.json()["request_id"]


def test_a_number_used_for_two_requests(raw: Raw, repaired: bool, adapter: str) -> None:
    for rate, expected in ((0.0, 200), (1e-9, 400 if repaired else 409)):
        answer = raw.post("optim_step", model_id=adapter, seq_id=900, adam_params={"learning_rate": rate})
        assert answer.status_code == expected, answer.text


@OURS
def test_saving_a_model_that_is_not_loaded(raw: Raw) -> None:
    model_id = raw.adapter()
    raw.settle(raw.post("unload_model", model_id=model_id)).raise_for_status()
    refused(raw.post("save_weights", model_id=model_id, path="x"), "not loaded")
    refused(raw.post("unload_model", model_id=model_id), "not loaded")


# -- capabilities, time to live, errors


def test_the_context_limit_is_reported(raw: Raw, repaired: bool) -> None:
    (model,) = raw.http.get("/get_server_capabilities").json()["supported_models"]
    if repaired:
        assert model["max_context_length"] == raw.http.get("/healthz").json()["server"]["context_limit"] >= 4096
    else:
        assert "max_context_length" not in model


def test_a_time_to_live_is_reported_and_can_be_changed(raw: Raw, repaired: bool, adapter: str) -> None:
    def expiry() -> Any:
        listed = raw.http.get(f"/training_runs/{adapter}/checkpoints").json()["checkpoints"]
        return next(one.get("expires_at") for one in listed if one["tinker_path"].endswith("/brief"))

    raw.settle(raw.post("save_weights", model_id=adapter, path="brief", ttl_seconds=HOUR)).raise_for_status()
    assert (expiry() is not None) is repaired
    if repaired:
        path = f"/training_runs/{adapter}/checkpoints/weights/brief/ttl"
        assert raw.http.put(path, json={"ttl_seconds": None}).status_code == 200
        assert expiry() is None
        refused(raw.post("save_weights", model_id=adapter, path="never", ttl_seconds=0), "ttl_seconds=0")


def test_errors_of_a_request_are_not_the_servers(raw: Raw, repaired: bool, adapter: str) -> None:
    nan = json.dumps({"model_id": adapter, "adam_params": {"learning_rate": math.nan}})
    unknown = raw.post("retrieve_future", request_id="x")
    wrong = raw.http.post("/optim_step", content=nan, headers={"Content-Type": "application/json"})
    if repaired:
        refused(unknown)
        refused(wrong, "learning_rate")
    else:
        assert unknown.status_code == wrong.status_code == 500


# -- samplers


def sampler_of(raw: Raw, model_id: str, name: str) -> dict[str, Any]:
    """Of the model's weights as they are now. Body of a request to sample it."""
    raw.settle(raw.post("save_weights_for_sampler", model_id=model_id, path=name)).raise_for_status()
    prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
    path = f"tinker://{model_id}/sampler_weights/{name}"
    return {"model_path": path, "prompt": prompt, "sampling_params": {"max_tokens": 2}}


@contextlib.contextmanager
def engine_stopped(url: str) -> Iterator[None]:
    """Requests wait within the block and are computed together after it."""
    small_server.send(url, signal.SIGSTOP, engine_only=True)
    try:
        yield
    finally:
        small_server.send(url, signal.SIGCONT, engine_only=True)


@OURS
def test_a_sampler_that_was_used_is_refused_as_soon_as_its_time_is_over(raw: Raw, adapter: str) -> None:
    request = sampler_of(raw, adapter, "used")
    raw.settle(raw.post("asample", **request)).raise_for_status()
    ttl = f"/training_runs/{adapter}/checkpoints/sampler_weights/used/ttl"
    raw.http.put(ttl, json={"ttl_seconds": 1}).raise_for_status()

    def is_over() -> bool | None:
        listed = raw.http.get(f"/training_runs/{adapter}/checkpoints").json()["checkpoints"]
        return None if request["model_path"] in [one["tinker_path"] for one in listed] else True

    awaited(is_over)
    refused(raw.post("asample", **request), "time to live is over")


@OURS
def test_samples_that_wait_while_their_name_is_saved_again_are_not_of_the_new_weights(raw: Raw, adapter: str) -> None:
    """More than a wave has room for: a save is computed between two waves."""
    request = sampler_of(raw, adapter, "again")
    with engine_stopped(raw.url):
        waiting = [raw.post("asample", **request) for _ in range(3 * int(SMALL_SERVER["SAMPLE_MAX_NUM_SEQUENCES"]))]
        raw.http.delete(f"/training_runs/{adapter}/checkpoints/sampler_weights/again").raise_for_status()
        saving = raw.post("save_weights_for_sampler", model_id=adapter, path="again")
    raw.settle(saving).raise_for_status()
    for one in waiting:
        refused(raw.settle(one), request["model_path"], "is gone")
    raw.settle(raw.post("asample", **request)).raise_for_status()


@OURS
def test_a_damaged_sampler_fails_alone(raw: Raw, adapter: str) -> None:
    damaged = sampler_of(raw, adapter, "damaged")
    for name in ("x", "y", "z"):  # so that the engine has the first one no more
        sampler_of(raw, adapter, name)
    file = small_server.checkpoints_base(raw.url) / adapter / "sampler_weights" / "damaged.tar.gz"
    saved = file.stat()
    file.write_bytes(b"x" * saved.st_size)
    os.utime(file, ns=(saved.st_atime_ns, saved.st_mtime_ns))
    with engine_stopped(raw.url):
        waiting = [raw.post("asample", **damaged), raw.sample(TOKENS, max_tokens=2)]
    refused(raw.settle(waiting[0]), "ReadError")
    raw.settle(waiting[1]).raise_for_status()


@OURS
@pytest.mark.parametrize(("seed", "n"), [(2**31, 1), (-(2**31) - 1, 1), (2**31 - 1, 2), (2**70, 1)])
def test_a_seed_that_the_engine_cannot_take(raw: Raw, tiny_model_dir: Path, seed: int, n: int) -> None:
    prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
    params = {"max_tokens": 2, "seed": seed}
    refused(
        raw.post("asample", base_model=str(tiny_model_dir), prompt=prompt, sampling_params=params, num_samples=n),
        f"seed={seed}: must be a number of 32 bits",
    )


@OURS
def test_a_sample_with_a_number_that_is_too_large_fails_alone(raw: Raw) -> None:
    with engine_stopped(raw.url):
        waiting = [raw.sample(TOKENS, max_tokens=2, stop=[2**40]), raw.sample(TOKENS, max_tokens=2)]
    refused(raw.settle(waiting[0]), "OverflowError")
    raw.settle(waiting[1]).raise_for_status()
