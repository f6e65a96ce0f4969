"""The examples for real: an agent of one's own in a container, a run from Python, the loop, a loss on a real server."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker

from examples.loop import loop
from harbortrainer.backend.own_loss import OwnLoss
from harbortrainer.backend.policy import PolicyTrainer
from harbortrainer.config import Config
from harbortrainer.learning.brought import function
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.minibatches import normalize
from harbortrainer.learning.trajectory import Outcome, TrialName
from harbortrainer.training.outside import Outside
from tests.conftest import MODEL, ROOT
from tests.support.agent_endings import Live, run
from tests.support.agent_shells import HELLO, PACK
from tests.support.small_settings import OWN, needs_torch

SMALL = {
    "lora_rank": 8, "batch_size": 2, "group_size": 4, "n_parallel_envs": 4, "max_turns": 3, "max_tokens": 24,
    "context_limit": 2048, "learning_rate": 3e-3, "max_steps": 1,
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.skipif(not (PACK / "python").is_dir(), reason="scripts/setup.sh --agents makes the programs")
async def test_an_agent_of_ones_own_acts_in_a_container(tmp_path: Path, nothing_left: None) -> None:
    """By the path of its file; its program lies beside the Python of a pack."""
    shutil.copytree(PACK / "python", tmp_path / "agents" / "python")
    (tmp_path / "agents" / "bin").mkdir()
    shutil.copy(ROOT / "examples" / "one-shot", tmp_path / "agents" / "bin")
    shutil.copy(ROOT / "examples" / "agent.py", tmp_path)
    agent = f"{tmp_path}/agent.py:OneShot"

    def says(live: Live) -> list[str]:
        live.beside = lambda _: HELLO  # to requests that declare no tools
        return [HELLO]

    ended = await run(tmp_path / "trial", agent, says, agents_dir=str(tmp_path / "agents"))
    trajectory = ended.trajectory
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert len(trajectory.turns) == 1 and ended.stat("wire_foreign") == 0


def small(url: str, folder: Path) -> Config:
    own: Any = {"skyrl_tx_url": url, "model_name": str(MODEL), "logs_dir": str(folder)} | SMALL
    return Config(backend="skyrl-tx", tasks_dir="datasets/quickstart", **own)


def test_the_loop(
    server_url: str,
    docker_ready: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKYRL_TX_URL", server_url)
    assert asyncio.run(loop(small(server_url, tmp_path)))
    printed = capsys.readouterr().out
    assert "saved tinker://" in printed and "step 1: reward " in printed


@needs_torch
async def test_a_loss_of_ones_own_has_the_gradient_of_the_servers(server_url: str) -> None:
    """importance_sampling with token_mean, by the server and by a function: one step of equal adapters."""
    config = Config(
        backend="skyrl-tx",
        skyrl_tx_url=server_url,
        model_name=str(MODEL),
        tasks_dir="d",
        lora_rank=8,
        context_limit=2048,
    )
    rng, sequences = np.random.default_rng(0), []
    for member in range(4):
        mask = np.arange(24) % 8 > 3
        floats = [np.where(mask, values, 0).astype(np.float32) for values in (-5 - rng.random(24), member - 1.5)]
        name = str(TrialName("step", 0, 0, member))
        tokens = rng.integers(9, 99, 24).astype(np.int32)
        sequences.append(TrainingSequence(name, tokens, mask, logprobs_T=floats[0], advantages_T=floats[1]))
    backend = await Outside().connect(config)
    try:
        results = []
        for own in (None, OwnLoss(function("loss", f"{OWN}:importance_sampling"), sequences)):
            policy, adam = await PolicyTrainer.create(backend, config), tinker.AdamParams(learning_rate=1e-3)
            if own is None:
                scaled = normalize(sequences, "token_mean")
                step = await policy.update(scaled, loss_fn="importance_sampling", loss_fn_config=None, adam=adam)
            else:
                step = await policy.update_by(own, adam)
            results.append((step, await policy.logprobs(sequences)))
            await policy.close()
    finally:
        await backend.close(done=True)
    (plain, after), (mine, afterwards) = results
    assert mine.metrics["optim/grad_norm"] == pytest.approx(plain.metrics["optim/grad_norm"], rel=1e-3)
    assert mine.metrics["loss/observed"] == 4 * 8
    for one, other in zip(after, afterwards, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)
    assert any(np.abs(one - other).max() > 1e-3 for one, other in zip(after, plain.logprobs_D, strict=True))
