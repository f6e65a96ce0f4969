"""Weights leave the server and come back: exported adapters under transformers and peft, and as a run's start."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import numpy as np
import pytest
import safetensors.numpy
import tinker

from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import BackendError
from scripts.models import tiny_hybrid, tiny_model
from tests.conftest import MODEL, ROOT, free_port, live_server, succeed
from tests.support.engine_parts import ADAM, DATA, TOKENS, adapters, step
from tests.support.hybrid_reference import TOKENIZER
from tests.support.served_run import arguments, served_run, weights
from tests.support.server_parts import awaited
from tests.support.small_server import checkpoints_base

FAMILIES = ("qwen3", "llama", "qwen3.5")
CLOSE, CLOSE_IN_MEAN = 1e-4, 0.03  # nats: the largest in float32, the mean in bfloat16
VLLM = ROOT / "server" / "vllm" / ".venv" / "bin" / "python"
PROMPTS = [list(range(5 + 7 * n, 15 + 8 * n)) for n in range(20)]
GREEDY = tinker.SamplingParams(max_tokens=16, temperature=0.0, stop=[])  # nothing ends it
VENV = ROOT / ".state" / "cookbook" / "venv"
ENVIRONMENT = """
set -euo pipefail
for part in common python; do source scripts/lib/$part.sh; done
source scripts/cookbook/environment.sh
ensure_cookbook_env "$1"
"""


@dataclass(frozen=True)
class Trained:
    """A state on a server after two steps, the sampler's log-probabilities of TOKENS, its greedy texts of PROMPTS."""

    url: str
    model: Path
    path: str
    sampled: list[list[float]]
    greedy: list[list[int]]
    dtype: str


@pytest.fixture(scope="module")
def torch_env() -> Path:
    """Python with torch, transformers, peft and tinker_cookbook."""
    succeed("bash", "-c", ENVIRONMENT, "_", VENV, timeout_sec=1800)
    return VENV / "bin" / "python"


def write_model(family: str, folder: Path, dtype: Literal["float32", "bfloat16"]) -> None:
    if family == "quickstart":
        shutil.copytree(ROOT / MODEL, folder)
    elif family == "qwen3.5":
        tiny_hybrid.write(TOKENIZER, folder, dtype=dtype)
    else:
        tiny_model.write(ROOT / MODEL, folder, family, dtype)  # pyright: ignore[reportArgumentType]


@pytest.fixture(
    scope="module", params=[f"{family} {dtype}" for dtype in ("float32", "bfloat16") for family in FAMILIES]
)
def trained(request: pytest.FixtureRequest, server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    family, dtype = request.param.split()
    folder = tmp_path_factory.mktemp(family)
    model = folder / "tiny"
    write_model(family, model, dtype)
    with live_server(model, folder / "server", TRAIN_MICRO_BATCH_SIZE="2") as url:
        yield asyncio.run(train(url, model, dtype))


async def train(url: str, model: Path, dtype: str) -> Trained:
    async with adapters(url, model) as (service, client):
        for _ in range(2):
            await step(client, DATA, adam=ADAM)
        path = (await client.save_state("end")).path
        sampler = await service.create_sampling_client(model_path=(await client.save_weights_for_sampler("end")).path)
        scores = [await sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens)) for tokens in TOKENS]
        prompts = [sampler.sample(tinker.ModelInput.from_ints(tokens), 1, GREEDY) for tokens in PROMPTS]
        texts = [list((await asked).sequences[0].tokens) for asked in prompts]
    return Trained(url, model, path, [list(map(float, one[1:])) for one in scores], texts, dtype)


def scored(python: Path, model: Path, adapter: Path, merged: Path, dtype: str) -> list[list[list[float]]]:
    """Of TOKENS, by transformers and peft: with the adapter, without, and by the whole model."""
    (file := merged.parent / "tokens.json").write_text(json.dumps(TOKENS))
    command = [python, "tests/support/peft_scores.py", model, adapter, file, merged, dtype]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.rpartition("RESULT ")[2])


def apart(one: list[list[float]], other: list[list[float]]) -> np.ndarray:
    """Of every token, in nats."""
    return np.concatenate([np.abs(np.array(a) - np.array(b)) for a, b in zip(one, other, strict=True)])


def exported(trained: Trained, to: Path, *more: str) -> Path:
    words = ["backend=skyrl-tx", f"skyrl_tx_url={trained.url}", f"checkpoint={trained.path}", f"to={to}"]
    assert main(["export", *words, *more]) == 0
    return to


@pytest.mark.nightly
def test_an_exported_adapter_scores_as_the_sampler_does(trained: Trained, torch_env: Path, tmp_path: Path) -> None:
    """Beside it the whole model, merged by the command."""
    adapter = exported(trained, tmp_path / "out")
    files = {"README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "tokenizer.json"}
    assert files <= {file.name for file in adapter.iterdir()}
    whole = exported(trained, tmp_path / "whole", "merged=true", f"python={torch_env}")
    assert not (whole / "adapter_config.json").exists() and (whole / "tokenizer.json").is_file()
    with_it, without, merged = scored(torch_env, trained.model, adapter, whole, trained.dtype)
    print(
        f"{trained.model.parent.name} {trained.dtype}: largest",
        *(apart(s, trained.sampled).max() for s in (with_it, merged)),
    )
    print("mean", *(apart(scores, trained.sampled).mean() for scores in (with_it, merged)))
    for scores in (with_it, merged):
        off = apart(scores, trained.sampled)
        assert off.mean() < CLOSE_IN_MEAN and (trained.dtype == "bfloat16" or off.max() < CLOSE)
    assert apart(without, trained.sampled).max() > 0.01, "it has learned"
    left = [*checkpoints_base(trained.url).rglob("external--*")]
    assert left == [], "the files that the server made for it are gone"


@contextlib.contextmanager
def vllm_with(model: Path, adapter: Path, log: Path) -> Iterator[str]:
    """vLLM's API server of the model, with the adapter as `out`; started as server/sampler_cpu.py says."""
    port = free_port()
    words = ["--model", str(model), "--lora-modules", f"out={adapter}", "--port", str(port), "--dtype", "float32"]
    words += ["--enable-lora", "--max-lora-rank", "8", "--max-model-len", "256", "--generation-config", "vllm"]
    words += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "256"]  # a CPU
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        command = [str(VLLM), str(ROOT / "server" / "sampler_cpu.py"), *words]
        on = subprocess.Popen(command, env=env, stdout=file, stderr=file, start_new_session=True)
        try:
            awaited(lambda: is_up(f"http://127.0.0.1:{port}/health") or on.poll() is not None or None, 600.0)
            assert on.poll() is None, log.read_text()[-3000:]
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(on.pid, signal.SIGTERM)
            on.wait(60)


def is_up(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.nightly
@pytest.mark.parametrize(
    "trained", ["quickstart float32"], indirect=True
)  # vLLM's heads on a CPU have 32 numbers or more
def test_vllm_loads_the_folder_and_answers_as_the_sampler_does(trained: Trained, tmp_path: Path) -> None:
    """vLLM's API server with `--lora-modules NAME=FOLDER`: the same greedy tokens for 20 prompts."""
    succeed("scripts/setup.sh", "--sampler", timeout_sec=1800)
    adapter = exported(trained, tmp_path / "out")
    with vllm_with(trained.model, adapter, tmp_path / "vllm.log") as url:
        body = {"max_tokens": GREEDY.max_tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        texts = {}
        for name in ("out", str(trained.model)):
            asked = [{"model": name, "prompt": prompt, **body} for prompt in PROMPTS]
            answers = [httpx.post(f"{url}/completions", json=one, timeout=300).raise_for_status() for one in asked]
            texts[name] = [answer.json()["choices"][0]["token_ids"] for answer in answers]
    assert texts["out"] == trained.greedy
    assert texts[str(trained.model)] != trained.greedy, "the base model answers otherwise"


def test_an_exported_run_starts_another_with_the_same_log_probabilities(
    server_url: str, source: Path, tmp_path: Path
) -> None:
    """First-step log-probabilities; the folder's card has data, settings and the model."""
    folder = tmp_path / "adapter"
    backend = ["backend=skyrl-tx", f"skyrl_tx_url={server_url}"]
    assert main(["export", *backend, f"checkpoint={source}@1", f"to={folder}"]) == 0
    assert main(["export", *backend, f"checkpoint={source}@1", f"to={folder}"]) == 2, "it is not empty"
    card = (folder / "README.md").read_text()
    assert f"base_model: {MODEL}" in card and '"learning_rate": 0.003' in card and server_url not in card
    run = asyncio.run(served_run(arguments(server_url, tmp_path, "next", "max_steps=1", f"init_from={folder}")))
    saved = {one.name: read_lines(one / "checkpoints.jsonl") for one in (source, run)}
    trained, started = (
        asyncio.run(weights(server_url, saved[name][at]["path"])) for name, at in (("source", 1), ("next", 0))
    )
    assert np.abs(started - trained).max() < 1e-5
    assert np.abs(asyncio.run(weights(server_url, saved["source"][0]["path"])) - trained).max() > 1e-3
    rows = read_lines(run / "metrics.jsonl")
    assert rows[-1]["optim/server_step"] == 1, "Adam counts from zero"


def test_what_does_not_fit_the_model_is_refused_by_the_server(
    server_url: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 32.0, "base_model_name_or_path": str(MODEL)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    safetensors.numpy.save_file({name: np.zeros((8, 3), np.float32)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(BackendError, match=r"the adapter does not fit|Missing key"):
        asyncio.run(served_run(arguments(server_url, tmp_path, "run", "max_steps=1", f"init_from={tmp_path}")))
    assert not (tmp_path / "run").exists(), "a refused run leaves no directory"
