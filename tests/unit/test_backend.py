import asyncio
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import tinker

from src.backend.connect import api_key, check_model, connect, server_url, warn_about_family
from src.backend.contract import SKYRL_TX, TINKER_CLOUD, check_settings
from src.backend.datum import build_datums
from src.backend.faults import awaited
from src.config import Config
from src.errors import BackendError, UserError
from src.learning.datums import TrainingSequence


def config(**changes) -> Config:
    values: dict[str, Any] = {"model_name": "Qwen/Qwen3-4B", "tasks_dir": "d"}
    return Config(**(values | changes))


def sequence(n_prompt=3, n_sampled=2, advantage=0.5, name="t") -> TrainingSequence:
    mask = np.array([False] * n_prompt + [True] * n_sampled)
    n = len(mask)
    logprobs = np.where(mask, -0.5, 0).astype(np.float32)
    return TrainingSequence(
        name, np.arange(n, dtype=np.int32), mask, logprobs, np.where(mask, advantage, 0).astype(np.float32)
    )


# -- URL, key, health


def test_self_hosted_without_url_names_the_field(monkeypatch):
    monkeypatch.delenv("SKYRL_TX_URL", raising=False)
    with pytest.raises(UserError, match=r"skyrl_tx_url.*SKYRL_TX_URL"):
        server_url(config(backend="skyrl-tx"))


def test_url_comes_from_the_field_then_the_environment(monkeypatch):
    monkeypatch.setenv("SKYRL_TX_URL", "http://env:1/")
    assert server_url(config(backend="skyrl-tx")) == "http://env:1"
    assert server_url(config(backend="skyrl-tx", skyrl_tx_url="http://field:2")) == "http://field:2"
    assert server_url(config()) is None
    assert server_url(config(tinker_base_url="https://x")) == "https://x"


def test_url_without_scheme_is_refused():
    with pytest.raises(UserError, match=r"skyrl_tx_url=localhost:8000.*http://"):
        server_url(config(backend="skyrl-tx", skyrl_tx_url="localhost:8000"))


def test_cloud_needs_a_key_and_the_self_hosted_server_none(monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    assert api_key(SKYRL_TX).startswith("tml-")
    with pytest.raises(UserError, match=r"TINKER_API_KEY.*\.env"):
        api_key(TINKER_CLOUD)
    monkeypatch.setenv("TINKER_API_KEY", "wrong")
    with pytest.raises(UserError, match=r"starts with tml-"):
        api_key(TINKER_CLOUD)


async def test_refused_connection_says_how_to_start_the_server():
    with pytest.raises(
        UserError, match=r"skyrl_tx_url=http://127\.0\.0\.1:9: connection refused.*start_skyrl_tx.*healthz"
    ):
        await connect(config(backend="skyrl-tx", skyrl_tx_url="http://127.0.0.1:9"))


async def test_another_service_at_the_url_is_no_tinker_api():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(UserError, match=r"no Tinker API there.*404"):
            await connect(config(backend="skyrl-tx", skyrl_tx_url=f"http://127.0.0.1:{port}"))


# -- contract


def test_wrong_model_is_refused_with_both_names():
    with pytest.raises(UserError, match=r"Qwen/Qwen3-4B.*serves meta/x.*start_skyrl_tx\.sh Qwen/Qwen3-4B"):
        check_model(config(backend="skyrl-tx"), {"meta/x": None})
    check_model(config(), {"Qwen/Qwen3-4B": 32768})


def test_unknown_family_only_warns(caplog, tmp_path):
    warn_about_family("mistralai/Mistral-7B", SKYRL_TX)
    assert "mistralai/Mistral-7B" in caplog.text and "Qwen3" in caplog.text
    caplog.clear()
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    warn_about_family(str(tmp_path), SKYRL_TX)
    warn_about_family("Qwen/Qwen3-4B", SKYRL_TX)
    assert caplog.text == ""


def test_context_beyond_tinker_cloud_is_refused_and_free_on_the_own_server():
    with pytest.raises(UserError, match=r"context_limit=128000.*32000.*backend=skyrl-tx"):
        check_settings(config(context_limit=128000), TINKER_CLOUD)
    check_settings(config(context_limit=128000, backend="skyrl-tx"), SKYRL_TX)


def test_what_a_server_would_ignore_is_refused():
    with pytest.raises(UserError, match=r"grad_clip_norm=1\.0.*ignores"):
        check_settings(config(grad_clip_norm=1.0, backend="skyrl-tx"), SKYRL_TX)
    check_settings(config(grad_clip_norm=1.0), TINKER_CLOUD)
    with pytest.raises(UserError, match=r"loss_fn=ppo.*importance_sampling"):
        check_settings(config(loss_fn="ppo"), replace(TINKER_CLOUD, losses=frozenset({"importance_sampling"})))


# -- datums


def test_datum_is_shifted_by_one_and_carries_the_mask_only_where_it_is_taken():
    (datum,) = build_datums([sequence()], SKYRL_TX, 100)
    assert datum.model_input.to_ints() == [0, 1, 2, 3]
    assert datum.loss_fn_inputs["target_tokens"].to_numpy().tolist() == [1, 2, 3, 4]
    assert datum.loss_fn_inputs["weights"].to_numpy().tolist() == [0, 0, 1, 1]
    (cloud,) = build_datums([sequence()], TINKER_CLOUD, 100)
    assert "weights" not in cloud.loss_fn_inputs
    assert cloud.loss_fn_inputs["advantages"].to_numpy().tolist() == [0, 0, 0.5, 0.5]


def test_an_averaging_server_gets_advantages_times_what_it_divides_by():
    datums = build_datums([sequence(n_sampled=2), sequence(n_sampled=5)], SKYRL_TX, 100)
    scales = [datum.loss_fn_inputs["advantages"].to_numpy().max() / 0.5 for datum in datums]
    assert scales == [2 * 2, 5 * 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs_T": np.zeros(4, np.float32)}, "4 logprobs for 5 tokens"),
        ({"advantages_T": np.ones(5, np.float32)}, "not sampled"),
        ({"mask_T": np.zeros(5, np.bool_)}, "at least one sampled token"),
        ({"tokens_T": np.array([1, 2, 3, 4, 100], np.int32)}, "token 100 is outside the vocabulary of 100"),
        ({"logprobs_T": np.array([0, 0, 0, np.nan, -1], np.float32)}, "finite"),
        ({"logprobs_T": np.array([0, 0, 0, 0.5, -1], np.float32)}, "above 0"),
    ],
)
def test_malformed_sequence_is_never_sent(changes, words):
    with pytest.raises(ValueError, match=words):
        build_datums([sequence(), replace(sequence(name="bad"), **changes)], SKYRL_TX, 100)


# -- faults


def http_error(status: int, detail: str) -> tinker.APIStatusError:
    response = httpx.Response(status, request=httpx.Request("POST", "http://x"))
    return tinker.APIStatusError(f"Error code: {status} - {{'detail': '{detail}'}}", response=response, body=None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (http_error(400, "LoRA rank 64 must be between 1 and 32"), r"lora_rank.*at most 32"),
        (http_error(400, "Maximum number of LoRA adapters (8) reached"), r"MAX_LORA_ADAPTERS"),
        (ValueError("Error code: 400 - {'detail': 'Model model_1 not loaded'} (status 400)"), r"resume=RUN_DIR"),
        (ConnectionRefusedError("no"), r"healthz"),
        (http_error(400, "something new"), r"something new"),
    ],
)
async def test_sdk_errors_become_one_plain_line(error, words):
    async def fail() -> None:
        raise error

    with pytest.raises(BackendError, match=words) as raised:
        await awaited("optim_step", fail(), 1.0)
    assert str(raised.value).startswith("optim_step: ") and "\n" not in str(raised.value)


async def test_a_server_that_hangs_is_named_by_what_was_waited_for():
    with pytest.raises(BackendError, match=r"forward_backward: no answer within"):
        await awaited("forward_backward", asyncio.Event().wait(), 0.01)
