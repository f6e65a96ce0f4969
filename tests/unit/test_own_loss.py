"""`loss=MODULE:FUNCTION`: what the function gets, what becomes of its answer, and what is refused."""

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harbortrainer.backend.contract import CLOUD, TINKER_DOCUMENTS
from harbortrainer.backend.own_loss import LossSequence, OwnLoss
from harbortrainer.backend.terms import agree
from harbortrainer.cli.arguments import validate
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.brought import function, functions
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.minibatches import optimizer_batches
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.plugins import Brought
from tests.conftest import ROOT
from tests.support.recorded_run import Recorder, fake_run
from tests.support.small_settings import HAS_TORCH, OWN, copy_tasks, needs_torch


def config(**values: Any) -> Config:
    return Config(**{"model_name": "m", "tasks_dir": "d", **values})


def sequence(problem: int, member: int, advantage: float = 1.0) -> TrainingSequence:
    """Five tokens: a prompt, an answer, an observation, an answer of two."""
    mask = np.array([False, True, False, True, True])
    floats = (np.where(mask, -0.7, 0).astype(np.float32), np.where(mask, advantage, 0).astype(np.float32))
    return TrainingSequence(str(TrialName("step", 0, problem, member)), np.arange(5, dtype=np.int32), mask, *floats)


def called(
    value: Any, sequences_D: Sequence[TrainingSequence], logprob: float = -0.5
) -> tuple[OwnLoss, Any, list[Any]]:
    """The call as the SDK makes it, and the gradients."""
    torch = importlib.import_module("torch")
    own = OwnLoss(Brought("loss=own.py:f", "", value), sequences_D)
    logprobs_D = [torch.full((4,), logprob, requires_grad=True) for _ in sequences_D]
    loss, _ = own([], logprobs_D)
    loss.backward()
    return own, loss, [one.grad for one in logprobs_D]


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_it_is_refused_before_anything_is_spent() -> None:
    with pytest.raises(UserError, match=r"loss=\S+: torch, which differentiates it, is not installed; install"):
        functions(config(loss=f"{OWN}:importance_sampling"))


@pytest.mark.parametrize("setting", [{"loss_fn": "ppo"}, {"loss_norm": "token_sum"}, {"clip_thresholds": (0.5, 1.2)}])
def test_settings_of_the_servers_losses_are_refused_beside_it(setting: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"without effect while loss=own.py:f; leave it out"):
        validate(config(loss="own.py:f", **{"loss_fn": "ppo"} | setting))


def test_a_server_that_averages_is_refused() -> None:
    agreed = agree(config(loss="own.py:f"), CLOUD, TINKER_DOCUMENTS)
    assert agreed.loss["loss_fn"] == "own.py:f"
    with pytest.raises(UserError, match=r"loss=own.py:f: needs the loss cross_entropy, summed"):
        agree(config(loss="own.py:f"), CLOUD, replace(TINKER_DOCUMENTS, reduction="example_mean"))


def test_minibatches_have_whole_groups_and_advantages_as_they_are() -> None:
    sequences = [sequence(problem, member, 0.25) for problem in range(4) for member in range(3)]
    parts = optimizer_batches(sequences, config(loss="own.py:f", num_substeps=2), 0)
    groups = [{TrialName.parse(one.trial_name).problem for one in part} for part in parts]
    assert [len(part) for part in parts] == [6, 6] and groups[0].isdisjoint(groups[1])
    assert all(set(one.advantages_T[one.mask_T]) == {0.25} for part in parts for one in part)


@needs_torch
def test_the_function_sees_masks_and_both_logprobs() -> None:
    seen: list[LossSequence] = []

    def f(sequences: list[LossSequence]) -> Any:
        seen.extend(sequences)
        return sequences[0].logprobs_T.sum(), {"n": 2}

    own, _, gradients = called(f, [sequence(3, 0), sequence(3, 1, -1.0)])
    first, second = seen
    assert first.group == second.group == "s000000-p03" and second.trial_name == "s000000-p03-g01"
    assert first.logprobs_T.tolist() == [0, -0.5, -0.5, -0.5, -0.5]
    assert first.sampled_logprobs_T.tolist() == pytest.approx([0, -0.7, 0, -0.7, -0.7])
    assert second.advantages_T.tolist() == [0, -1, 0, -1, -1]
    assert first.action_T.tolist() == [False, True, False, True, True]
    assert first.observation_T.tolist() == [False, False, True, False, False]
    assert own.metrics == {"loss/n": 2.0}
    assert [one.tolist() for one in gradients] == [[1, 1, 1, 1], [0, 0, 0, 0]]  # also where it is not used


@needs_torch
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return sequences[0].logprobs_T.sum()", "returned Tensor"),
        ("return 1.0, {}", r"returned 1\.0 as loss"),
        ("return sequences[0].logprobs_T.detach().sum(), {}", "as loss"),
        ("return sequences[0].logprobs_T, {}", "as loss"),
        ("return sequences[0].logprobs_T.sum() * float('nan'), {}", "as loss"),
        ("return sequences[0].logprobs_T.sum(), {'a': float('inf')}", "returned inf as metric a"),
        ("return (sequences[0].logprobs_T * 0).abs().sqrt().sum(), {}", "a loss whose gradient is not finite"),
    ],
)
def test_another_answer_is_refused(body: str, words: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def f(sequences):\n    {body}", space)
    with pytest.raises(UserError, match=f"loss=own.py:f: returned .*{words.removeprefix('returned ')}"):
        called(space["f"], [sequence(0, 0)])


@needs_torch
def test_the_shipped_dpo_prefers_the_better_of_a_group() -> None:
    dpo = function("loss", f"{ROOT}/examples/dpo.py:dpo").value
    better, worse, other = sequence(0, 0, 0.5), sequence(0, 1, -0.5), sequence(1, 0, 0.0)
    own, loss, gradients = called(dpo, [better, worse, other], logprob=-0.7)
    assert (loss.item(), own.metrics["loss/pairs"]) == (pytest.approx(np.log(2)), 1)
    up, down, none = (one.tolist() for one in gradients)
    assert up == pytest.approx([-0.05, 0, -0.05, -0.05])  # beta / 2 on the answers' tokens alone
    assert down == pytest.approx([0.05, 0, 0.05, 0.05]) and none == [0, 0, 0, 0]
    assert called(dpo, [other])[0].metrics == {"loss/pairs": 0.0}


def run_config(tmp_path: Path, **values: Any) -> Config:
    shared: dict[str, Any] = {"backend": "skyrl-tx", "skyrl_tx_url": "http://here:1", "model_name": "models/one"}
    tasks = copy_tasks(tmp_path / "tasks", ("count-1", "create-1"))
    shared |= {"tasks_dir": tasks, "logs_dir": str(tmp_path), "batch_size": 2, "group_size": 4, "run_name": "run"}
    return Config(**shared | values)


@needs_torch
async def test_a_run_with_the_servers_own_loss_as_a_function_sends_the_same_gradient(tmp_path: Path) -> None:
    plain, mine = Recorder(), Recorder()
    assert await fake_run(run_config(tmp_path / "a"), plain) == 0
    assert await fake_run(run_config(tmp_path / "b", loss=f"{OWN}:importance_sampling"), mine) == 0

    def weights(recorder: Recorder, name: str) -> list[list[float]]:
        return sorted(datum[name] for datum in recorder.kinds("datum"))

    # the fake server's logprobs are those that it sampled with: all ratios are 1
    assert len(weights(mine, "weights")) == len(weights(plain, "advantages")) > 0
    for one, other in zip(weights(mine, "weights"), weights(plain, "advantages"), strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    (row,) = map(json.loads, (tmp_path / "b" / "run" / "metrics.jsonl").read_text().splitlines())
    assert row["loss/observed"] > 0 and "server/surrogate_loss_sum" not in row
    effective = json.loads((tmp_path / "b" / "run" / "effective.json").read_text())
    assert effective["loss"]["loss_fn"].endswith(":importance_sampling")
    assert effective["brought"]["loss"].startswith("sha256:")


@needs_torch
async def test_an_error_in_the_function_ends_the_run_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(sequences): return sequences[0].no_such_thing")
    with pytest.raises(AttributeError, match="no_such_thing"):
        await fake_run(run_config(tmp_path, loss=f"{tmp_path}/mine.py:f"), Recorder())
