"""What the environment answered as targets: which trials, which weights, how it is sent; and dppo."""

from typing import Any

import numpy as np
import pytest
import tinker

from harbortrainer.backend.contract import TINKER_DOCUMENTS
from harbortrainer.backend.datum import build_datums
from harbortrainer.backend.policy import UpdateResult
from harbortrainer.config import Config
from harbortrainer.learning.batch import CONSTANT, assemble
from harbortrainer.learning.datums import digest, training_sequences
from harbortrainer.learning.minibatches import optimizer_batches
from harbortrainer.learning.observations import OWN_RATIO, as_targets, observed_nats, weighed
from harbortrainer.learning.off_policy import TINY, within_divergence
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn, group_trajectories
from harbortrainer.training.update import Updater
from tests.support.made_trials import sequence

COEFFICIENT = 0.05


def trial(
    member: int, reward: float | None, outcome: Outcome = Outcome.COMPLETED, observed: int = 2, problem: int = 0
) -> Trajectory:
    """Three turns: instruction; `observed` tokens of output between the template's; the harness's own words."""
    first = Turn(0, (1, 2), (3, 4), (-0.5, -0.25), 0, roles_T=b"\0\1")
    second = Turn(0, (5, *[6] * observed, 7), (8,), (-0.5,), 0, roles_T=bytes([0, *[2] * observed, 0]))
    third = Turn(0, (9, 9), (8, 8), (-0.5, -1.0), 0, roles_T=b"\0\1")
    return Trajectory("t", f"s000000-p{problem:02d}-g{member:02d}", (first, second, third), reward, outcome)


def config(**settings: Any) -> Config:
    return Config(model_name="m", tasks_dir="d", observation_loss_coef=COEFFICIENT, **settings)


def names(sequences: Any) -> list[str]:
    return [one.trial_name[-3:] for one in sequences]


def test_only_what_answered_an_action_is_a_target() -> None:
    (one,) = training_sequences(trial(0, 1.0), 0.5, observed=True)
    assert one.observed_T is not None
    assert one.tokens_T[one.observed_T > 0].tolist() == [6, 6] and not one.observed_T[one.mask_T].any()
    (plain,) = training_sequences(trial(0, 1.0), 0.5)
    assert plain.observed_T is None and digest([plain]) != digest([one])
    unknown = Trajectory("t", "s000000-p00-g00", (Turn(0, (1, 2), (3,), (-0.5,), 0),) * 2, 1.0, Outcome.COMPLETED)
    (old,) = training_sequences(unknown, 0.5, observed=True)
    assert old.observed_T is not None and not old.observed_T.any(), "of a run from before"


def test_trials_without_an_advantage_teach_by_their_observations_where_their_tokens_are_real() -> None:
    signal = [trial(0, 1.0), trial(1, 0.0), trial(2, 0.0, Outcome.MAX_TURNS)]
    lost = [
        trial(3, None, Outcome.UNASKED), trial(4, None, Outcome.VERIFIER_ERROR),
        trial(5, None, Outcome.INFRASTRUCTURE_ERROR), trial(6, None, Outcome.CANCELLED),
        trial(7, None, Outcome.UNASKED, observed=0),
    ]  # fmt: skip
    constant = [trial(member, 1.0, problem=1) for member in (10, 11)]
    groups = [group_trajectories("t", [*signal, *lost]), group_trajectories("t", constant)]
    settings = {"outcome_policy": {"max_turns": "mask"}, "remove_constant_reward_groups": True}
    batch = assemble(groups, config(**settings))
    assert names(batch.sequences_D) == ["g00", "g01", "g02", "g03", "g04", "g10", "g11"]
    assert [one[-3:] for one in batch.observing] == ["g02", "g03", "g04", "g10", "g11"]
    assert batch.left_out == dict.fromkeys([one.trial_name for one in constant], CONSTANT)
    assert [one[-3:] for one in batch.masked] == ["g02"]
    plain = assemble(groups, Config(model_name="m", tasks_dir="d", **settings))
    assert names(plain.sequences_D) == ["g00", "g01"] and plain.advantages == batch.advantages
    silent = assemble([groups[1]], config())
    assert names(silent.sequences_D) == ["g10", "g11"] and silent.observing
    assert not assemble([groups[1]], Config(model_name="m", tasks_dir="d")).sequences_D
    alone = assemble(groups, config(advantage="none"))
    assert len(alone.observing) == len(alone.sequences_D) == 7, "learning without a verifier"


@pytest.mark.parametrize("norm", ["token_mean", "sequence_mean", "token_sum"])
def test_both_terms_have_their_own_divisors(norm: Any) -> None:
    """Neither observations nor trials that only observe change an advantage as it is sent."""
    members = [trial(0, 1.0), trial(1, 0.0, observed=90), trial(2, None, Outcome.UNASKED, observed=7)]
    groups = [group_trajectories("t", members)]
    (part,) = optimizer_batches(assemble(groups, config(loss_norm=norm)).sequences_D, config(loss_norm=norm), 0)
    usual = Config(model_name="m", tasks_dir="d", loss_norm=norm)
    (plain,) = optimizer_batches(assemble(groups, usual).sequences_D, usual, 0)
    for one, other in zip(part, plain, strict=False):
        assert np.array_equal(one.advantages_T, other.advantages_T)
    assert not part[2].advantages_T.any()
    sums = [float(one.observed_T.sum()) for one in part if one.observed_T is not None]
    assert sums == pytest.approx([COEFFICIENT / 3] * 3), "the mean over trials of their means"


def test_observations_are_sent_with_a_ratio_of_1() -> None:
    (one,) = given = training_sequences(trial(0, 1.0), 0.5, observed=True)
    twice = weighed([one, one], COEFFICIENT)  # two segments of a trial
    assert [float(part.observed_T.sum()) for part in twice if part.observed_T is not None] == pytest.approx([0.025] * 2)
    one, unseeing = weighed([*given, *training_sequences(trial(1, 1.0, observed=0), 0.5, observed=True)], COEFFICIENT)
    current = np.linspace(-3, -0.1, len(one.tokens_T)).astype(np.float32)
    for scored, own in ((None, np.full(len(current), OWN_RATIO, np.float32)), ([current], current)):
        sent, other = as_targets([one, unseeing], scored)
        assert other is unseeing and sent.logprobs_T.dtype == np.float32
        (datum,) = build_datums([sent], "importance_sampling", TINKER_DOCUMENTS, 99, None)
        inputs = {name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()}
        where = one.observed_T[1:] > 0  # pyright: ignore[reportOptionalSubscript]
        assert inputs["advantages"][where] == pytest.approx([COEFFICIENT / 2] * 2)
        assert np.array_equal(inputs["logprobs"][where], own[1:][where])
        acts = one.mask_T[1:]
        assert np.array_equal(inputs["logprobs"][acts], one.logprobs_T[1:][acts])
        assert inputs["advantages"][acts] == pytest.approx([0.5] * int(acts.sum()))
    (datum,) = build_datums([one], "cross_entropy", TINKER_DOCUMENTS, 99, None)
    assert datum.loss_fn_inputs["weights"].to_numpy().sum() == pytest.approx(0.5 * 5 + COEFFICIENT)
    nats = observed_nats([one], [current])
    assert nats == {"observation/nats": pytest.approx(-current[5:7].mean()), "observation/tokens": 2}
    assert observed_nats(training_sequences(trial(0, 1.0), 0.5), [current]) == {}


def test_dppo_masks_what_the_step_would_move_further_away() -> None:
    """p and q by hand: TV above 0.1 and A (p - q) > 0. The last token has no advantage."""
    q, p = [0.5, 0.5, 0.5, 0.5, 0.5, 0.001, 0.5], [0.65, 0.35, 0.65, 0.35, 0.55, 0.01, 0.9]
    one = sequence("s000000-p00-g00", np.log(q).tolist(), 1.0)
    advantages = np.array([0, 1, 1, -1, -1, 1, 1, 0], np.float32)
    one = one.with_advantages(advantages)
    current = np.array([0, *np.log(p)], np.float32)
    never, surely = sequence("s000000-p00-g00", [-900.0], 1.0), np.zeros(2, np.float32)
    for divergence, threshold, expected in (("tv", 0.1, [0, 0, 1, -1, 0, 1, 1]), ("kl", 0.006, [0, 0, 1, -1, 0, 1, 0])):
        (kept, _), share = within_divergence([one, never], [current, surely - 900], divergence, threshold)
        assert kept.advantages_T.tolist() == [*expected, 0] and share == pytest.approx((4 - sum(expected)) / 8)
        (kept,), share = within_divergence(
            [sequence("s", [0.0, 0.0], 1.0)], [np.array([0, 0, -900.0])], divergence, 0.1
        )
        assert share == 0 and np.isfinite(kept.advantages_T).all()
    for threshold, masked in ((0.1, 1), ((1 - TINY) - TINY, 0)):
        assert within_divergence([never], [surely], "tv", threshold)[1] == masked


class Policy:
    """Scores each token with -1; the weights move with each step."""

    def __init__(self, knows_own_ratio: bool) -> None:
        self.knows_own_ratio, self.calls, self.sent = knows_own_ratio, [], []

    async def logprobs(self, sequences_D: Any) -> list[np.ndarray]:
        self.calls.append("forward")
        return [np.full(len(s.tokens_T), -1.0, np.float32) for s in sequences_D]

    async def update(self, sequences_D: Any, **given: Any) -> UpdateResult:
        self.calls.append(given["loss_fn"])
        self.sent.append(sequences_D)
        return UpdateResult(tuple(np.full(len(s.tokens_T), -1.0, np.float32) for s in sequences_D), {})


@pytest.mark.parametrize(
    ("own", "settings", "calls"),
    [
        (False, {}, ["forward", "importance_sampling"]),
        (True, {}, ["importance_sampling"]),
        (True, {"loss_fn": "ppo"}, ["ppo"]),
        (True, {"loss_fn": "dppo"}, ["forward", "importance_sampling"]),
        (False, {"num_substeps": 2}, ["forward", "importance_sampling"] * 2),
    ],
)
async def test_a_forward_pass_is_made_where_the_server_needs_it(own: bool, settings: Any, calls: list[str]) -> None:
    policy: Any = Policy(own)
    groups = [group_trajectories("t", [trial(0, 1.0), trial(1, 0.0)])]
    updater = Updater(config(**settings), policy, 10)
    metrics = await updater.update(0, assemble(groups, config(**settings)))
    assert policy.calls == calls
    assert metrics["observation/nats"] == 1.0 and metrics["observation/tokens"] == 4
    assert sum(updater.scored.values()) == ("forward" in calls) * 2 * 13
    own_logprob = OWN_RATIO if "forward" not in calls else -1.0
    assert {float(one.logprobs_T[5]) for part in policy.sent for one in part} == {own_logprob}
    assert ("loss/dppo_masked" in metrics) == (settings.get("loss_fn") == "dppo")
    assert max(map(len, updater.log_ratios.values())) == 5, "of sampled tokens alone"


def test_a_datum_whose_target_is_sampled_and_observed_is_refused() -> None:
    (one,) = training_sequences(trial(0, 1.0), 0.5, observed=True)
    assert isinstance(build_datums(as_targets([one], None), "ppo", TINKER_DOCUMENTS, 99, None)[0], tinker.Datum)
    object.__setattr__(one, "observed_T", np.ones(len(one.tokens_T), np.float32))
    with pytest.raises(ValueError, match="observed and sampled"):
        build_datums([one], "ppo", TINKER_DOCUMENTS, 99, None)
