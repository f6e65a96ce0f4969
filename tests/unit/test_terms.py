"""Every known case in which a server would train differently: made up for, or refused with field, reason and fix."""

from dataclasses import replace
from typing import Any

import pytest

from harbortrainer.backend.contract import CLIP_SETTINGS, CLOUD, SELF_HOSTED, TINKER_DOCUMENTS, Contract, ServerKind
from harbortrainer.backend.terms import agree, loss_settings
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from tests.support.fakes import STOCK


def config(**changes) -> Config:
    values: dict[str, Any] = {"model_name": "Qwen/Qwen3-4B", "tasks_dir": "d"}
    return Config(**(values | changes))


def test_context_beyond_tinker_cloud_is_refused_and_free_on_the_own_server():
    with pytest.raises(UserError, match=r"context_limit=128000.*32000.*backend=skyrl-tx"):
        agree(config(context_limit=128000), CLOUD, TINKER_DOCUMENTS)
    agree(config(context_limit=128000, backend="skyrl-tx"), SELF_HOSTED, STOCK)
    with pytest.raises(UserError, match=r"context_limit=128000.*at most 40960 tokens; set context_limit=40960$"):
        agree(config(context_limit=128000, backend="skyrl-tx"), SELF_HOSTED, STOCK, max_context=40960)


@pytest.mark.parametrize(
    ("changes", "contract", "words"),
    [
        ({"grad_clip_norm": 1.0}, {}, r"grad_clip_norm=1\.0: .*does not apply it \(measured\); leave it at 0"),
        ({}, {"adam": {"beta2": False}}, r"beta2=0\.95: .*does not apply it.*applies it"),
        ({"learning_rate": 1e-3}, {"adam": {"learning_rate": False}}, r"learning_rate=0\.001: "),
        ({"loss_fn": "cispo"}, {"losses": {"ppo": CLIP_SETTINGS}}, r"loss_fn=cispo: not on .*use one of: ppo"),
        ({"loss_fn": "ppo"}, {"losses": {"ppo": frozenset()}}, r"clip_high_threshold=1\.2: without effect"),
        (
            {"loss_fn": "ppo", "clip_thresholds": (0.5, 1.2)},
            {"losses": {"ppo": {"clip_high_threshold"}}},
            r"clip_low_threshold=0\.5: without effect .*loss_fn=ppo",
        ),
        ({}, {"reduction": "unknown"}, r"loss_norm=token_mean: .*src\.doctor"),
        ({"kl_penalty_coef": 0.1}, {"prompt_logprobs": False}, r"kl_penalty_coef=0\.1: .*no reference.*set it to 0"),
        ({}, {"wrong": "ROW"}, r"model_name=Qwen/Qwen3-4B: .*another policy would learn.*\(ROW\).*src\.doctor$"),
        ({}, {"can_sample": False}, r"backend=skyrl-tx: .*cannot sample.*start_skyrl_tx\.sh Qwen/Qwen3-4B"),
    ],
)
def test_what_the_server_would_not_do_is_refused(changes, contract, words):
    with pytest.raises(UserError, match=words):
        agree(config(backend="skyrl-tx", **changes), SELF_HOSTED, replace(STOCK, **contract))


def test_all_refusals_come_at_once():
    with pytest.raises(UserError) as refused:
        agree(config(backend="skyrl-tx", grad_clip_norm=1.0, loss_fn="ppo"), SELF_HOSTED, replace(STOCK, losses={}))
    assert [line.split("=")[0] for line in str(refused.value).splitlines()] == ["loss_fn", "grad_clip_norm"]


def test_what_is_made_up_for_is_said():
    assert agree(config(), CLOUD, TINKER_DOCUMENTS).notes == ()
    loss, sampling = agree(config(backend="skyrl-tx"), SELF_HOSTED, STOCK).notes
    assert "averages" in loss and "scaled" in loss
    assert "overwrite" in sampling


@pytest.mark.parametrize(("kind", "contract"), [(CLOUD, TINKER_DOCUMENTS), (SELF_HOSTED, STOCK)])
def test_another_temperature_than_that_of_the_loss_is_said(kind: ServerKind, contract: Contract) -> None:
    note = agree(config(temperature=0.7), kind, contract).notes[0]
    assert note.startswith("temperature=0.7: trials are sampled at 0.7, but") and "trains the policy of" in note
    assert not any("temperature" in note for note in agree(config(temperature=1.0), kind, contract).notes)


def test_what_could_not_be_measured_is_said():
    notes = agree(config(), CLOUD, replace(TINKER_DOCUMENTS, adam={**TINKER_DOCUMENTS.adam, "beta1": None})).notes
    assert len(notes) == 1 and "beta1: " in notes[0] and "could not be measured" in notes[0]


def test_clip_thresholds_are_always_sent():
    assert loss_settings(config()) is None
    assert loss_settings(config(loss_fn="ppo")) == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    given = loss_settings(config(loss_fn="cispo", clip_thresholds=(0.8, 4.0)))
    assert given == {"clip_low_threshold": 0.8, "clip_high_threshold": 4.0}


def test_the_effective_loss_and_optimizer_name_every_setting():
    terms = agree(config(loss_fn="ppo", grad_clip_norm=1.0, lr_schedule="cosine"), CLOUD, TINKER_DOCUMENTS)
    assert terms.loss["clip_low_threshold"] == 0.8 and terms.loss["reduction"] == "sum over tokens and datums"
    assert terms.optimizer == {
        "name": "AdamW",
        "learning_rate": 1e-4,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-12,
        "weight_decay": 0.0,
        "grad_clip_norm": 1.0,
        "lr_schedule": "cosine",
        "warmup_steps": 0,
    }


@pytest.mark.parametrize(("sampler", "noted"), [("vllm 0.32.0", True), ("jax 0.12.0", False), ("", False)])
def test_another_engine_than_the_trainers_is_noted(sampler, noted):
    notes = agree(config(backend="skyrl-tx"), SELF_HOSTED, replace(TINKER_DOCUMENTS, sampler=sampler)).notes
    assert any(note.startswith("sampler: the self-hosted server samples with vllm 0.32.0") for note in notes) == noted
