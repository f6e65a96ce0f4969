"""Weights leave the server and come back: exported adapters under transformers and peft, and as a run's start."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import tinker

from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import BackendError
from scripts.models import tiny_hybrid, tiny_model
from tests.conftest import MODEL, ROOT, live_server, succeed
from tests.support.engine_parts import ADAM, DATA, TOKENS, adapters, step
from tests.support.hybrid_reference import TOKENIZER
from tests.support.served_run import arguments, served_run, weights
from tests.support.small_server import checkpoints_base

FAMILIES = ("qwen3", "llama", "qwen3.5")
CLOSE = 1e-4  # nats, in float32
VENV = ROOT / ".state" / "cookbook" / "venv"
ENVIRONMENT = """
set -euo pipefail
for part in common python; do source scripts/lib/$part.sh; done
source scripts/cookbook/environment.sh
ensure_cookbook_env "$1"
"""


@dataclass(frozen=True)
class Trained:
    """A state on a server after two steps, and the sampler's log-probabilities of TOKENS."""

    url: str
    model: Path
    path: str
    sampled: list[list[float]]


@pytest.fixture(scope="module")
def torch_env() -> Path:
    """Python with torch, transformers, peft and tinker_cookbook."""
    succeed("bash", "-c", ENVIRONMENT, "_", VENV, timeout_sec=1800)
    return VENV / "bin" / "python"


def write_model(family: str, folder: Path) -> None:
    if family == "qwen3.5":
        tiny_hybrid.write(TOKENIZER, folder)
    else:
        tiny_model.write(ROOT / MODEL, folder, family, "float32")  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request: pytest.FixtureRequest, server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    folder = tmp_path_factory.mktemp(request.param)
    model = folder / "tiny"
    write_model(request.param, model)
    with live_server(model, folder / "server", TRAIN_MICRO_BATCH_SIZE="2") as url:
        yield asyncio.run(train(url, model))


async def train(url: str, model: Path) -> Trained:
    async with adapters(url, model) as (service, client):
        for _ in range(2):
            await step(client, DATA, adam=ADAM)
        path = (await client.save_state("end")).path
        sampler = await service.create_sampling_client(model_path=(await client.save_weights_for_sampler("end")).path)
        scores = [await sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens)) for tokens in TOKENS]
    return Trained(url, model, path, [list(map(float, one[1:])) for one in scores])


def scored(python: Path, model: Path, adapter: Path, folder: Path) -> list[list[list[float]]]:
    """Of TOKENS, by transformers and peft: with the adapter, without, and with it merged by the cookbook."""
    (file := folder / "tokens.json").write_text(json.dumps(TOKENS))
    command = [python, "tests/support/peft_scores.py", model, adapter, file, folder / "merged"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.rpartition("RESULT ")[2])


def apart(one: list[list[float]], other: list[list[float]]) -> float:
    return max(float(np.abs(np.array(a) - np.array(b)).max()) for a, b in zip(one, other, strict=True))


@pytest.mark.nightly
def test_an_exported_adapter_scores_as_the_sampler_does(trained: Trained, torch_env: Path, tmp_path: Path) -> None:
    words = ["backend=skyrl-tx", f"skyrl_tx_url={trained.url}", f"checkpoint={trained.path}", f"to={tmp_path / 'out'}"]
    assert main(["export", *words]) == 0
    files = {"README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "tokenizer.json"}
    assert files <= {file.name for file in (tmp_path / "out").iterdir()}
    with_it, without, merged = scored(torch_env, trained.model, tmp_path / "out", tmp_path)
    assert apart(with_it, trained.sampled) < CLOSE
    assert apart(merged, trained.sampled) < CLOSE
    assert apart(without, trained.sampled) > 0.01, "it has learned"
    left = [*checkpoints_base(trained.url).rglob("external--*")]
    assert left == [], "the files that the server made for it are gone"


def test_an_exported_run_starts_another_with_the_same_log_probabilities(
    server_url: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """First-step log-probabilities; the folder's card has data, settings and the model."""
    source = asyncio.run(served_run(arguments(server_url, tmp_path, "source", "max_steps=1")))
    folder = tmp_path / "adapter"
    backend = ["backend=skyrl-tx", f"skyrl_tx_url={server_url}"]
    assert main(["export", *backend, f"checkpoint={source}@1", f"to={folder}"]) == 0
    assert main(["export", *backend, f"checkpoint={source}@1", f"to={folder}"]) == 2, "it is not empty"
    card = (folder / "README.md").read_text()
    assert f"base_model: {MODEL}" in card and '"learning_rate": 0.003' in card and server_url not in card
    run = asyncio.run(served_run(arguments(server_url, tmp_path, "next", "max_steps=1", f"init_from={folder}")))
    saved = {name: read_lines(tmp_path / name / "checkpoints.jsonl") for name in ("source", "next")}
    trained, started = (
        asyncio.run(weights(server_url, saved[name][at]["path"])) for name, at in (("source", 1), ("next", 0))
    )
    assert np.abs(started - trained).max() < 1e-5
    assert np.abs(asyncio.run(weights(server_url, saved["source"][0]["path"])) - trained).max() > 1e-3
    rows = read_lines(run / "metrics.jsonl")
    assert rows[-1]["optim/server_step"] == 1, "Adam counts from zero"


def test_what_does_not_fit_the_model_is_refused_by_the_server(
    server_url: str, tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 32.0, "base_model_name_or_path": str(MODEL)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    safetensors.numpy.save_file({name: np.zeros((8, 3), np.float32)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(BackendError, match=r"the adapter does not fit|Missing key"):
        asyncio.run(served_run(arguments(server_url, tmp_path, "run", "max_steps=1", f"init_from={tmp_path}")))
    assert not (tmp_path / "run").exists(), "a refused run leaves no directory"
