from dataclasses import replace

import numpy as np
import pytest

from harbortrainer.config import Config
from harbortrainer.learning.batch import assemble, group_advantages
from harbortrainer.learning.datums import (
    apply_kl_penalty,
    count_tokens,
    mean_log_ratio,
    some_sequences,
    training_sequences,
)
from harbortrainer.learning.minibatches import minibatches, normalize, optimizer_batches
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrialName, Turn, group_trajectories
from harbortrainer.training.update import learning_rate


def trajectory(name: str, reward: float | None, lengths=((3, 2), (2, 1)), segments=(0, 0)) -> Trajectory:
    turns, token = [], 0
    for segment, (new, sampled) in zip(segments, lengths, strict=True):
        ids = tuple(range(token, token + new + sampled))
        turns.append(Turn(segment, ids[:new], ids[new:], tuple(-0.1 * (i + 1) for i in range(sampled)), 0))
        token += new + sampled
    outcome = Outcome.COMPLETED if reward is not None else Outcome.INFRASTRUCTURE_ERROR
    return Trajectory("task", name, tuple(turns), reward, outcome)


def test_advantages_are_centred_and_scaled_as_their_sources_say():
    assert group_advantages([1, 0, 0, 0]) == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert group_advantages([1, 0, 0, 0], baseline="leave_one_out") == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    by_std = group_advantages([1, 0, 0, 0], by_std=True)
    assert np.mean(by_std) == pytest.approx(0) and np.std(by_std) == pytest.approx(1)


@pytest.mark.parametrize("rewards", [[], [1.0], [0.5, 0.5, 0.5], [0.1 + 0.2, 0.3]])
def test_constant_group_has_no_advantage_whatever_the_rounding(rewards):
    assert group_advantages(rewards, by_std=True) == [0.0] * len(rewards)


def test_turns_of_a_segment_become_one_sequence_with_every_token_once():
    trial = trajectory("a", 1.0)
    assert (trial.n_prompt_tokens, trial.n_sampled_tokens, trial.n_unique_tokens) == (3 + 7, 3, 8)
    (sequence,) = training_sequences(trial, 0.5)
    assert sequence.tokens_T.tolist() == list(range(8))
    assert sequence.mask_T.tolist() == [False] * 3 + [True] * 2 + [False] * 2 + [True]
    assert sequence.logprobs_T.tolist() == pytest.approx([0, 0, 0, -0.1, -0.2, 0, 0, -0.1])
    assert sequence.advantages_T.tolist() == [0, 0, 0, 0.5, 0.5, 0, 0, 0.5]


def test_segments_share_the_advantage_and_empty_ones_are_left_out():
    trial = trajectory("a", 1.0, ((3, 2), (4, 1), (2, 0)), (0, 1, 2))
    assert replace(trial, side_segments=(1, 2)).n_side_tokens == 7
    sequences = training_sequences(trial, -1.0)
    assert [len(s.tokens_T) for s in sequences] == [5, 5] and count_tokens(sequences) == {"a": 10}
    assert all(set(s.advantages_T[s.mask_T]) == {-1.0} for s in sequences)


def total(sequences, name: str | None = None) -> float:
    return float(sum(s.advantages_T.sum() for s in sequences if name in (None, s.trial_name)))


def test_loss_norms_weigh_tokens_and_trajectories_as_named():
    long = training_sequences(trajectory("long", 1.0, ((1, 6), (1, 2)), (0, 1)), 1.0)
    short = training_sequences(trajectory("short", 1.0, ((1, 1), (1, 1))), 1.0)
    both = [*long, *short]
    assert total(normalize(both, "token_sum")) == 10
    assert total(normalize(both, "token_mean")) == pytest.approx(1)
    assert total(normalize(both, "token_mean"), "long") == pytest.approx(0.8)
    assert total(normalize(both, "sequence_mean"), "long") == pytest.approx(0.5)
    assert total(normalize(both, "sequence_mean"), "short") == pytest.approx(0.5)
    (alone,) = normalize(training_sequences(trajectory("one", 1.0, ((1, 1),), (0,)), 1.0), "token_mean")
    assert total([alone]) == 1 and alone.advantages_T.dtype == np.float32
    assert mean_log_ratio([alone], [alone.logprobs_T - 2]) == pytest.approx(2) and mean_log_ratio([], []) == 0


@pytest.mark.parametrize(("settings", "lowered", "sum_"), [({}, -0.2, 0.0), ({"centred": False}, -0.3, -0.3)])
def test_kl_penalty_lowers_what_has_moved_away_most(settings, lowered, sum_):
    """Centred it sums to zero; otherwise it never raises a token that the reference likes less."""
    acting, watching = (training_sequences(trajectory("a", 1.0), 0.0, acts=acts)[0] for acts in (True, False))
    base = acting.logprobs_T.copy()
    base[3] -= 3.0  # the policy likes token 3 far more than the base model does
    (penalised, same), mean = apply_kl_penalty([acting, watching], [base, base], coefficient=0.1, **settings)
    assert mean == pytest.approx(1.0) == mean_log_ratio([acting], [base])
    with pytest.raises(ValueError, match="zip"):
        mean_log_ratio([acting, watching], [base])
    assert penalised.advantages_T[3] == pytest.approx(lowered)
    assert penalised.advantages_T.sum() == pytest.approx(sum_, abs=1e-6)
    assert not penalised.advantages_T[~penalised.mask_T].any() and not same.advantages_T.any()


def test_minibatches_keep_trajectories_whole_and_are_never_empty():
    sequences = [s for i in range(5) for s in training_sequences(trajectory(f"t{i}", 1.0, segments=(0, 1)), 1.0)]
    parts = minibatches(sequences, 3, np.random.default_rng(0))
    names = [{s.trial_name for s in part} for part in parts]
    assert sorted(len(n) for n in names) == [1, 2, 2]
    assert set.union(*names) == {f"t{i}" for i in range(5)} and sum(len(p) for p in parts) == 10
    assert len(minibatches(sequences, 9, np.random.default_rng(0))) == 5

    def drawn(seed: int, step: int) -> str:
        return str(
            [[s.trial_name for s in p] for p in optimizer_batches(sequences, config(seed=seed, num_substeps=5), step)]
        )

    assert drawn(0, 0) == drawn(0, 0) and len({drawn(seed, step) for seed in (0, 1) for step in (0, 1)}) == 4


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.854, 0.5, 0.146]),
    ],
)
def test_learning_rate_warms_up_then_follows_its_schedule(schedule, expected):
    settings = config(learning_rate=1.0, lr_schedule=schedule, warmup_steps=2)
    rates = [learning_rate(step, 6, settings) for step in range(6)]
    assert rates == pytest.approx(expected, abs=1e-3)


def config(**changes) -> Config:
    return Config(model_name="m", tasks_dir="d", **changes)


def groups():
    mixed = group_trajectories("mixed", [trajectory("m0", 1.0), trajectory("m1", 0.0), trajectory("m2", None)])
    constant = group_trajectories("constant", [trajectory("c0", 1.0), trajectory("c1", 1.0)])
    alone = group_trajectories("alone", [trajectory("a0", 1.0), trajectory("a1", None)])
    return [mixed, constant, alone]


def test_a_lost_member_is_left_out_and_does_not_pull_the_mean():
    batch = assemble(groups(), config())
    assert batch.advantages["m0"] == 0.5 and batch.advantages["m1"] == -0.5
    assert "m2" not in batch.advantages
    assert {s.trial_name for s in batch.sequences_D} == {"m0", "m1", "c0", "c1"}
    assert batch.metrics["group/too_small"] == 1
    assert batch.metrics["train/tokens_per_unique_token"] == 1.0
    assert batch.metrics["train/datums_per_trajectory"] == 1.0


def test_constant_groups_are_removed_only_when_asked():
    batch = assemble(groups(), config(remove_constant_reward_groups=True))
    assert {s.trial_name for s in batch.sequences_D} == {"m0", "m1"}
    assert batch.metrics["group/removed_constant"] == 1


def test_a_batch_without_signal_sends_nothing():
    assert assemble(groups()[1:], config()).sequences_D == ()
    assert assemble([], config()).sequences_D == ()
    assert len(assemble(groups()[1:], config(kl_penalty_coef=0.1)).sequences_D) == 2


def test_without_rewards_no_group_is_left_out():
    usual = assemble(groups(), config())
    alone = assemble(groups(), config(advantage="none", kl_penalty_coef=1.0))
    assert set(alone.advantages.values()) == {0.0} and alone.left_out == {}
    assert {s.trial_name for s in alone.sequences_D} == set(alone.advantages), "a group of one has a signal too"
    assert len(alone.advantages) > len(usual.sequences_D)


def test_some_sequences_are_drawn_by_seed_and_step():
    sequences = [s for i in range(20) for s in training_sequences(trajectory(f"t{i:02}", 1.0), 1.0)]

    def drawn(seed: int, step: int) -> list[str]:
        return [s.trial_name for s in some_sequences(sequences, 8, seed, step)]

    assert drawn(0, 0) == drawn(0, 0) == sorted(set(drawn(0, 0))) and len(drawn(0, 0)) == 8
    assert len({tuple(drawn(seed, step)) for seed in (0, 1) for step in (0, 1)}) == 4
    assert some_sequences(sequences[:3], 8, 0, 0) == sequences[:3]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("s000012-p03-g01", TrialName("step", 12, 3, 1)),
        ("e000000-p00-g00-a2", TrialName("eval", 0, 0, 0, attempt=2)),
        ("s1234567-p100-g128-a10", TrialName("step", 1234567, 100, 128, attempt=10)),
    ],
)
def test_the_name_of_a_trial_says_where_it_belongs(text: str, name: TrialName) -> None:
    assert TrialName.parse(text) == name and str(name) == text
    assert str(name.first) == text.partition("-a")[0] and name.first.group == name.group


@pytest.mark.parametrize(
    "text", ["", "s12-p03-g01", "x000012-p03-g01", "s000012-p03", "s000012-p03-g01-a", "s000012-p03-g01.npz"]
)
def test_other_text_is_not_the_name_of_a_trial(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a trial"):
        TrialName.parse(text)
