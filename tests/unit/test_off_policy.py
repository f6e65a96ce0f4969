"""Older samples: their measurement, the correction of importance_sampling, and the settings that ask for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harbortrainer.backend.contract import SELF_HOSTED
from harbortrainer.backend.policy import UpdateResult
from harbortrainer.backend.terms import agree
from harbortrainer.errors import UserError
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.off_policy import ratio_metrics, staleness_metrics, truncated
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn, group_trajectories
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.training.update import Updater
from tests.support.fakes import STOCK, ScriptedClient, ask, chat_template, response
from tests.support.made_trials import sequence
from tests.support.small_settings import config


def test_weights_are_capped_and_trials_too_far_away_teach_nothing() -> None:
    near, far = sequence("near", [-1.0, -1.0, -1.0, -1.0]), sequence("far", [-3.0, -3.0])
    trained = [np.array([9.0, -1.0, 0.5, -1.5, -0.8]), np.array([9.0, -1.0, -2.0])]
    (one, two), masked = truncated([near, far], trained, 2.0)
    assert masked == {"far"}, "its mean log-ratio is 1.5, above log 2"
    ratios = np.exp(trained[0] - one.logprobs_T)[1:]
    assert ratios == pytest.approx([1.0, 2.0, np.exp(-0.5), np.exp(0.2)], rel=1e-5)
    assert one.logprobs_T[0] == 0 and one.logprobs_T.dtype == np.float32
    assert np.array_equal(one.advantages_T, near.advantages_T)
    assert np.array_equal(two.tokens_T, far.tokens_T) and near.logprobs_T[2] == -1.0, "the given ones do not change"


def test_segments_of_a_trial_are_judged_together() -> None:
    parts = [sequence("one", [-1.0]), sequence("one", [-1.0])]
    assert truncated(parts, [np.array([0.0, 0.0]), np.array([0.0, -2.0])], 2.0)[1] == set()
    assert truncated(parts, [np.array([0.0, 0.0]), np.array([0.0, -0.1])], 2.0)[1] == {"one"}
    assert truncated([sequence("edge", [0.0])], [np.array([0.0, np.log(2.0)])], 2.0)[1] == set()


def test_ratios() -> None:
    """Of equal ones, and of 0.5, 1, 1, 3, where the limits themselves are within."""
    names = ("ratio_p01", "ratio_p50", "ratio_p99", "effective_sample_size", "clipped_fraction")
    mixed = np.array([0.0, -1.0, -1.0, np.log(3) - 1, np.log(0.5) - 1])
    size = 5.5**2 / (4 * (1 + 1 + 9 + 0.25))
    for trained, expected in ((np.full(5, -1.0), (1, 1, 1, 1, 0)), (mixed, (0.515, 1, 2.94, size, 0.5))):
        found = ratio_metrics([sequence("a", [-1.0] * 4)], [trained], 1.0, 1.0)
        assert found == {f"off_policy/{name}": pytest.approx(one) for name, one in zip(names, expected, strict=True)}


def test_staleness_is_counted_by_turn() -> None:
    turns = tuple(Turn(0, (1,), (2,), (-0.5,), weights_version=version) for version in (3, 3, 4))
    trial = Trajectory("t", "s000004-p00-g00", turns, 1.0, Outcome.COMPLETED)
    fresh = replace(trial, trial_name="s000004-p00-g01", turns=turns[2:])
    measured = staleness_metrics([group_trajectories("t", [trial, fresh])], 5)
    assert measured == {
        "off_policy/staleness_mean": 6 / 4, "off_policy/staleness_max": 2.0, "off_policy/mixed_trials": 1.0,
        "off_policy/turns_by_age/0": 0.0, "off_policy/turns_by_age/1": 2.0, "off_policy/turns_by_age/2": 2.0,
    }  # fmt: skip
    assert staleness_metrics([], 5)["off_policy/staleness_max"] == 0


class NotedPolicy:
    """Scores every sampled token with `nats` more than the sampler did, or each one with its own."""

    def __init__(self, nats: float | list[float]) -> None:
        self.knows_own_ratio = False
        self.nats = np.array([0.0, *nats]) if isinstance(nats, list) else nats
        self.scored = 0
        self.sent: list[TrainingSequence] = []

    async def logprobs(self, sequences_D: Any) -> list[np.ndarray]:
        self.scored += len(sequences_D)
        return [s.logprobs_T + self.nats for s in sequences_D]

    async def update(self, sequences_D: Any, **_: Any) -> UpdateResult:
        self.sent += sequences_D
        return UpdateResult(tuple(s.logprobs_T + self.nats for s in sequences_D), {})


def batch() -> Any:
    class Batch:
        sequences_D = (sequence("a", [-2.0, -2.0], 1.0), sequence("b", [-2.0, -2.0], -1.0))

    return Batch()


async def updated(nats: float | list[float], **settings: Any) -> tuple[NotedPolicy, dict[str, float], Updater]:
    policy: Any = NotedPolicy(nats)
    updater = Updater(config(**settings), policy, 10)
    return policy, await updater.update(0, batch()), updater


async def test_importance_sampling_is_scored_first_and_sent_with_capped_weights() -> None:
    policy, metrics, updater = await updated(0.6, max_steps_off_policy=1)
    assert policy.scored == 2 and metrics["off_policy/masked_trials"] == 0
    assert metrics["off_policy/ratio_p50"] == pytest.approx(np.exp(0.6))
    policy, metrics, updater = await updated([-1.0, 1.0], max_steps_off_policy=1)
    assert metrics["off_policy/masked_trials"] == 0 and metrics["off_policy/clipped_fraction"] == 0.5
    assert [s.logprobs_T[2] for s in policy.sent] == pytest.approx([-2.0 + 1 - np.log(2)] * 2)
    assert metrics["logprobs/max_abs_difference"] == pytest.approx(1), "of the samples, not of the capped ones"
    assert updater.log_ratios["a"] == pytest.approx([-1, 1], abs=1e-3)


async def test_a_batch_of_trials_too_far_away_takes_no_step() -> None:
    policy, metrics, updater = await updated(0.7, max_steps_off_policy=1)
    assert not policy.sent and updater.trials == []
    assert metrics["off_policy/masked_trials"] == 2 and metrics["train/skipped_batch"] == 1
    assert updater.log_ratios["a"] == pytest.approx([0.7, 0.7], abs=1e-3)


@pytest.mark.parametrize("norm", ["token_mean", "sequence_mean"])
async def test_a_trial_too_far_away_does_not_make_the_step_of_the_others_smaller(norm: str) -> None:
    class Drifting(NotedPolicy):
        async def logprobs(self, sequences_D: Any) -> list[np.ndarray]:
            return [s.logprobs_T + (2.0 if s.trial_name == "far" else 0.0) for s in sequences_D]

    sent: dict[str, list[TrainingSequence]] = {}
    for name, members in (("both", [("near", 10), ("far", 100)]), ("alone", [("near", 10)])):
        policy: Any = Drifting(0.0)
        given: Any = type("Batch", (), {"sequences_D": tuple(sequence(one, [-1.0] * n) for one, n in members)})
        updater = Updater(config(max_steps_off_policy=1, loss_norm=norm), policy, 10)
        await updater.update(0, given)
        sent[name] = policy.sent
        assert updater.trials == [["near"]]
    assert np.array_equal(sent["both"][0].advantages_T, sent["alone"][0].advantages_T)
    assert sent["both"][0].advantages_T.sum() == pytest.approx(1.0)


async def test_a_loss_that_clips_needs_no_scoring() -> None:
    policy, metrics, _ = await updated(0.6, max_steps_off_policy=1, loss_fn="ppo")
    assert policy.scored == 0 and "off_policy/masked_trials" not in metrics
    assert metrics["off_policy/clipped_fraction"] == 1
    assert [s.logprobs_T[1] for s in policy.sent] == [-2.0, -2.0]


async def test_on_policy_nothing_is_scored_or_reported() -> None:
    policy, metrics, _ = await updated(0.6)
    assert policy.scored == 0 and not any(name.startswith("off_policy/") for name in metrics)


@pytest.mark.parametrize(
    ("frozen", "words"), [(False, "overwrites the weights in training"), (None, "not be measured")]
)
def test_a_server_whose_sampling_disturbs_training_is_refused(frozen: bool | None, words: str) -> None:
    contract = replace(STOCK, frozen_samplers=frozen)
    with pytest.raises(UserError, match=f"max_steps_off_policy=1: .*{words}.*set it to 0"):
        agree(config(max_steps_off_policy=1, backend="skyrl-tx"), SELF_HOSTED, contract)
    agree(config(backend="skyrl-tx"), SELF_HOSTED, contract)


async def test_a_running_trial_takes_the_weights_published_last() -> None:
    sampler = PolicySampler()

    def publish(version: int) -> None:
        sampler.publish(ScriptedClient(lambda _: response([version]), chat_template()), version)

    publish(1)
    switches = sampler.of_trial(Path("t"))
    for version in (2, 3):
        publish(version)
        sample = await ask(switches)
        assert (sample.version, sample.tokens_T) == (version, (version,))
    assert sampler.versions_in_use == set()
    sampler.relabel(4)
    assert (await ask(sampler)).version == 4


async def test_pinned_weights_stay_whatever_is_published() -> None:
    sampler = PolicySampler()
    one, two = (ScriptedClient(lambda _, n=n: response([n]), chat_template()) for n in (1, 2))
    sampler.publish(one, 1)
    with sampler.pinned(one, 1) as pinned:
        assert sampler.versions_in_use == {1}, "before its first sample"
        sampler.publish(two, 2)
        assert [(s.version, s.tokens_T) for s in (await ask(pinned), await ask(sampler))] == [(1, (1,)), (2, (2,))]
    assert sampler.versions_in_use == set()
