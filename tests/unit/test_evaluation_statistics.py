"""The numbers of an evaluation: pass@k, intervals clustered by task, the verdict about two policies."""

import itertools
import math

import numpy as np
import pytest

from harbortrainer.stats import (
    Estimate,
    compare,
    estimate_mean,
    estimate_pass_at_k,
    estimate_reward,
    normal_quantile,
    pass_at_k,
    student_quantile,
    task_pass_at_k,
)
from tests.support.simulated_evaluations import simulate
from tests.support.tiers import first


def half_width(estimate: Estimate) -> float:
    return (estimate.high - estimate.low) / 2


def test_pass_at_k_is_what_enumeration_gives():
    for n in range(1, 10):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            trials = [True] * c + [False] * (n - c)
            draws = [any(draw) for draw in itertools.combinations(trials, k)]
            assert pass_at_k(n, c, k) == pytest.approx(sum(draws) / len(draws), abs=1e-12)


def test_pass_at_k_of_many_trials_does_not_overflow():
    assert pass_at_k(5000, 1, 100) == pytest.approx(0.02, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, 1, 4), (3, 1, 0), (3, -1, 1)])
def test_pass_at_k_of_nonsense_is_refused(n, c, k):
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, c, k)


def test_a_task_with_fewer_than_k_trials_has_no_pass_at_k():
    assert task_pass_at_k([1.0, 0.0], 3) is None
    assert task_pass_at_k([1.0, 0.0], 1) == 0.5
    assert task_pass_at_k([0.1 * 3 + 0.7, 0.5], 1) == 0.5  # 0.9999999999999999
    assert task_pass_at_k([0.5, 0.4], 1, pass_reward=0.5) == 0.5


def test_student_becomes_normal():
    assert student_quantile(0.95, 1999) == pytest.approx(normal_quantile(0.95), abs=2e-3)
    assert student_quantile(0.95, 5000) == normal_quantile(0.95)


def test_one_trial_a_task_is_wilsons_interval():
    estimate = estimate_mean([1.0] * 15 + [0.0] * 5)
    assert (estimate.low, estimate.high) == pytest.approx((0.5313, 0.8881), abs=1e-4)


def test_an_interval_stays_within_0_and_1_and_is_never_empty_where_all_pass():
    estimate = estimate_mean([1.0] * 30)
    assert estimate.high == 1.0
    assert 0.85 < estimate.low < 0.9
    assert estimate.stderr == 0.0


def test_tasks_that_are_alike_by_chance_still_have_an_interval():
    estimate = estimate_reward([[1.0, 0.0, 0.0, 0.0]] * 5)
    assert estimate.mean == 0.25
    assert estimate.high - estimate.low > 0.3
    passes = estimate_pass_at_k([[1.0, 0.0, 0.0, 0.0]] * 5, 2)
    assert passes.mean == 0.5
    assert passes.high - passes.low > 0.3
    assert half_width(estimate_mean([0.5] * 20)) > 0.1


def test_pass_at_1_has_the_interval_of_the_mean_reward():
    trials = [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]

    def numbers(estimate: Estimate) -> tuple[float, ...]:
        return estimate.mean, estimate.stderr, estimate.low, estimate.high

    assert numbers(estimate_pass_at_k(trials, 1)) == pytest.approx(numbers(estimate_reward(trials)))


def test_tasks_without_enough_trials_are_in_no_mean():
    assert estimate_reward([[1.0], [], [0.0]]).n_tasks == 2
    assert estimate_pass_at_k([[1.0, 1.0], [0.0], []], 2).n_tasks == 1


def test_rewards_beyond_0_and_1_have_an_interval_too():
    estimate = estimate_mean([-2.0, 0.0, 5.0, 1.0])
    assert estimate.low < 0 < estimate.high
    assert half_width(estimate) == pytest.approx(student_quantile(0.95, 3) * estimate.stderr)
    assert estimate_mean([7.0]).low == -math.inf


def rewards(rates, trials, seed):
    drawn = np.random.default_rng(seed).random((len(rates), trials)) < np.asarray(rates)[:, None]
    return {f"t{p}": rewards_G.astype(float).tolist() for p, rewards_G in enumerate(drawn)}


def test_a_clear_gain_is_better_and_its_reverse_is_worse():
    a, b = rewards([0.2] * 40, 4, 1), rewards([0.6] * 40, 4, 2)
    assert compare(a, b).verdict.endswith("better")
    assert compare(b, a).verdict.endswith("worse")
    assert compare(a, b).difference == pytest.approx(-compare(b, a).difference)


def test_pairing_removes_the_difference_between_tasks():
    rates = np.linspace(0.05, 0.85, 30)
    a = {f"t{p}": [rate] * 2 for p, rate in enumerate(rates)}
    b = {f"t{p}": [rate + 0.04 + 0.01 * (p % 2)] * 2 for p, rate in enumerate(rates)}
    assert compare(a, b).distinguishable
    assert half_width(estimate_mean(list(rates))) > 0.08


def test_equal_results_are_no_proof_of_equality():
    same = {f"t{p}": [1.0] for p in range(10)}
    result = compare(same, same)
    assert result.difference == 0
    assert result.half_width > 0.1
    assert result.verdict.endswith("not distinguishable; no difference was seen")


def test_only_tasks_that_both_were_graded_on_count():
    result = compare({"a": [1.0], "b": [0.0], "c": []}, {"a": [1.0], "b": [1.0], "c": [1.0], "d": [0.0]})
    assert result.n_tasks == 2
    assert "at least 2" in compare({"a": [1.0]}, {"a": [0.0]}).verdict


@pytest.mark.parametrize(
    ("policies", "tasks", "trials"),
    first(2, [(name, *size) for size in ((20, 2), (60, 4)) for name in ("beta, U-shaped", "all easy", "bimodal")]),
)
def test_coverage_and_false_verdicts_of_simulated_policies(policies, tasks, trials):
    """A short version of bench/coverage.py; the bounds are the bars and the chance in 300 evaluations."""
    row = simulate(policies, tasks, trials, evaluations=300, seed=3)
    assert 0.90 <= row.covered <= 0.995
    assert row.false <= 0.07


# -- trials without a grade


def test_an_ungraded_trial_widens_the_interval_to_every_reward_it_could_have_earned():
    rewards_P = [[1.0, 0.0], [1.0, 1.0]] * 5
    full = estimate_reward(rewards_P)
    assert estimate_reward(rewards_P, [0] * 10) == full
    lost = estimate_reward(rewards_P, [2] + [0] * 9)
    assert (lost.mean, lost.stderr, lost.n_tasks) == (full.mean, full.stderr, full.n_tasks)
    assert lost.low < full.low and lost.high > full.high
    for unknown in ([0.0, 0.0], [1.0, 0.0], [1.0, 1.0]):
        known = estimate_reward([[*rewards_P[0], *unknown], *rewards_P[1:]])
        assert lost.low <= known.low <= known.mean <= known.high <= lost.high


def test_a_task_without_a_grade_is_in_the_interval_though_in_no_mean():
    graded = estimate_reward([[1.0]] * 4)
    lost = estimate_reward([[1.0]] * 4 + [[]], [0, 0, 0, 0, 3])
    assert (lost.mean, lost.n_tasks, lost.high) == (1.0, 4, graded.high)
    assert lost.low == estimate_reward([[1.0]] * 4 + [[0.0] * 3]).low < graded.low
    assert math.isnan(estimate_reward([[]], [4]).low)  # nothing is known


def test_ungraded_trials_widen_pass_at_k_too():
    lost = estimate_pass_at_k([[1.0, 0.5], [0.5]], 2, 0.5, [0, 1])
    assert (lost.mean, lost.n_tasks) == (1.0, 1)
    assert lost.low <= estimate_pass_at_k([[1.0, 0.5], [0.5, 0.0]], 2, 0.5).low
    assert lost.high >= estimate_pass_at_k([[1.0, 0.5], [0.5, 0.5]], 2, 0.5).high


def test_losing_trials_never_makes_a_policy_better():
    before = {str(p): [1.0, 0.0, 0.0, 0.0] for p in range(12)}
    after = {name: [1.0] for name in before}  # its other trials have no grade
    assert compare(before, after).verdict.endswith("better")
    found = compare(before, after, {}, dict.fromkeys(after, 3))
    assert not found.distinguishable and "the ungraded trials could change it" in found.verdict
    assert found.low <= compare(before, before).difference <= found.high
    best = {name: [1.0] * 9 for name in before}
    assert compare(before, best, {}, {"0": 1}).verdict.endswith("better")  # one cannot change that
