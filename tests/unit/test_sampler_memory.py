"""How trainer and vLLM share a GPU, and which of them samples where SAMPLER is not set."""

import argparse
import os
from typing import Any

import pytest
from sampler_memory import ALONE, BOTH, FRACTION, GIB, need, settle, shares

# Qwen3-4B
CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 40_960, "dtype": "bfloat16",
}  # fmt: skip
SETTINGS = {"max_lora_adapters": 4, "max_lora_rank": 32, "sample_max_num_sequences": 16}
WEIGHTS, H100, H200 = 8_044_936_192, 81_559 << 20, 143_771 << 20
HOST = 60 * GIB


def test_what_was_measured_is_what_is_computed() -> None:
    """On an H100: 45.1 GiB where one datum of 131,072 tokens is trained; 194,064 tokens of vLLM's in 26.65 GiB."""
    long, short = (need(CONFIG, WEIGHTS, tokens, SETTINGS, host=0) for tokens in (131_072, 40_960))
    assert 45.1 <= long.trainer / GIB <= 55
    assert short.trainer / GIB >= 18.9, "what loading the weights takes"
    assert (long.vllm - short.vllm) / (131_072 - 40_960) == pytest.approx(26.65 * GIB / 194_064, rel=0.01)


@pytest.mark.parametrize(
    ("total", "context", "host", "fit"),
    [
        (H100, 40_960, 0, True),
        (H100, 131_072, 0, False),
        (H100, 131_072, HOST, True),
        (H100, 131_072, 20 * GIB, False),  # what the layers are given is 22.5 GiB
        (H200, 131_072, 0, True),
    ],
)
def test_shares_hold_what_is_needed_where_both_fit(total: int, context: int, host: int, fit: bool) -> None:
    needed = need(CONFIG, WEIGHTS, context, SETTINGS, host)
    trainer, vllm = shares(total, needed)
    assert trainer + vllm == pytest.approx(BOTH) and vllm * total >= needed.vllm
    assert (trainer * total >= needed.trainer - 1) == fit


def test_a_small_model_leaves_to_the_trainer_what_vllm_has_no_use_for() -> None:
    small = CONFIG | {"num_hidden_layers": 4, "hidden_size": 128, "head_dim": 32, "num_attention_heads": 4}
    needed = need(small, 4_000_000, 4096, SETTINGS, HOST)
    trainer, vllm = shares(H100, needed)
    assert vllm * H100 == pytest.approx(needed.vllm + needed.more) and trainer > 0.8


def test_a_share_that_is_given_stays() -> None:
    needed = need(CONFIG, WEIGHTS, 40_960, SETTINGS, HOST)
    assert shares(H100, needed, vllm=0.3) == (pytest.approx(BOTH - 0.3), 0.3)
    assert shares(H100, needed, trainer=0.5) == (0.5, pytest.approx(BOTH - 0.5))


@pytest.mark.parametrize(
    ("sampler", "context", "chosen", "words"),
    [
        ("auto", 40_960, "vllm", "sampler: vLLM with "),
        ("auto", 131_072, "jax", "more than there is; a lower SKYRL_TX_CONTEXT_LIMIT makes room"),
        ("vllm", 131_072, "vllm", "sampler: vLLM with "),
    ],
)
def test_vllm_samples_by_default_where_both_fit(
    sampler: str, context: int, chosen: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FRACTION, "")  # and whatever is set is undone
    args = argparse.Namespace(sampler=sampler, vllm_mem=0.0)
    assert words in settle(args, H100, need(CONFIG, WEIGHTS, context, SETTINGS, host=0), context)
    assert args.sampler == chosen
    assert float(os.environ[FRACTION]) + args.vllm_mem == pytest.approx(BOTH if chosen == "vllm" else ALONE, abs=2e-3)


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (24 * GIB, r"^SAMPLER=vllm: of the GPU's 24\.0 GiB .*set a lower SKYRL_TX_CONTEXT_LIMIT"),
        (0, "nvidia-smi does not tell the GPU's memory; set VLLM_MEM and XLA_PYTHON_CLIENT_MEM_FRACTION"),
    ],
)
def test_a_gpu_too_small_for_both_is_one_line(total: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FRACTION, "")
    needed = need(CONFIG, WEIGHTS, 40_960, SETTINGS, HOST)
    with pytest.raises(SystemExit, match=words):
        settle(argparse.Namespace(sampler="vllm", vllm_mem=0.0), total, needed, 40_960)
    args = argparse.Namespace(sampler="auto", vllm_mem=0.0)
    assert settle(args, total, needed, 40_960).startswith("sampler: jax") and args.sampler == "jax"
