"""forward, forward_backward, optim_step: what the losses are, and what a step does with them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tinker

from .parts import EPS, OTHER_TOKENS, TOKENS, datum, descend, gain, logprobs, output, settled, total, weighted

RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.uniform(0, 2, len(TOKENS) - 1).tolist()
ADVANTAGES = RANDOM.choice([-1.5, -0.5, 0.5, 2.0], len(TOKENS) - 1).tolist()
LOG_RATIOS = RANDOM.uniform(-0.7, 0.7, len(TOKENS) - 1).tolist()  # ratios of 0.5 to 2
THRESHOLDS = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.5}


def losses(client, loss_fn: str, config=None, **inputs: Sequence[float]) -> list[float]:
    """Of each target; changes nothing."""
    return output(client.forward([datum(TOKENS, **inputs)], loss_fn, config), "elementwise_loss")[0]


def test_cross_entropy_is_minus_weight_times_logprob(training):
    expected = [-w * lp for w, lp in zip(WEIGHTS, logprobs(training), strict=True)]
    assert losses(training, "cross_entropy", weights=WEIGHTS) == pytest.approx(expected, abs=1e-4)


def test_importance_sampling_is_minus_ratio_times_advantage(training):
    sampled = [lp - r for lp, r in zip(logprobs(training), LOG_RATIOS, strict=True)]
    expected = [-math.exp(r) * a for r, a in zip(LOG_RATIOS, ADVANTAGES, strict=True)]
    found = losses(training, "importance_sampling", logprobs=sampled, advantages=ADVANTAGES)
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("config", "low", "high"),
    [(None, 0.8, 1.2), (THRESHOLDS, 0.9, 1.5), ({"clip_low_threshold": 0.5, "clip_high_threshold": 1.1}, 0.5, 1.1)],
    ids=["Tinker's own", "both", "others"],
)
def test_ppo_takes_the_worse_of_ratio_and_clipped_ratio(training, config, low, high):
    sampled = [lp - r for lp, r in zip(logprobs(training), LOG_RATIOS, strict=True)]
    ratios = np.exp(LOG_RATIOS)
    expected = -np.minimum(ratios * ADVANTAGES, np.clip(ratios, low, high) * ADVANTAGES)
    found = losses(training, "ppo", config, logprobs=sampled, advantages=ADVANTAGES)
    assert found == pytest.approx(expected.tolist(), abs=1e-3)


def test_cispo_weighs_the_logprob_with_the_clipped_ratio(training):
    now = logprobs(training)
    sampled = [lp - r for lp, r in zip(now, LOG_RATIOS, strict=True)]
    expected = -np.clip(np.exp(LOG_RATIOS), 0.9, 1.5) * now * ADVANTAGES
    found = losses(training, "cispo", THRESHOLDS, logprobs=sampled, advantages=ADVANTAGES)
    assert found == pytest.approx(expected.tolist(), abs=1e-3)


def test_gspo_gives_each_token_the_geometric_mean_of_the_masked_ratios(training):
    now = logprobs(training)
    sampled = [lp - r for lp, r in zip(now, LOG_RATIOS, strict=True)]
    mask = [float(place > 4) for place in range(len(now))]
    ratio = math.exp(np.mean(LOG_RATIOS[5:]))
    expected = -np.minimum(ratio * np.array(ADVANTAGES), np.clip(ratio, 0.9, 1.5) * np.array(ADVANTAGES))
    inputs = {"logprobs": sampled, "advantages": ADVANTAGES, "sequence_ratio_mask": mask}
    assert losses(training, "gspo", THRESHOLDS, **inputs) == pytest.approx(expected.tolist(), abs=1e-3)


def test_gspo_pushes_each_token_by_its_own_advantage(training):
    inputs = {"logprobs": logprobs(training), "sequence_ratio_mask": [1.0] * len(ADVANTAGES)}
    gains = [
        gain(training, [datum(TOKENS, advantages=[sign] * len(ADVANTAGES), **inputs)], loss_fn="gspo")
        for sign in (1.0, -1.0)
    ]
    assert gains[0] > 1e-3 and gains[1] < -1e-3


@pytest.mark.parametrize(("config", "beta"), [(None, 0.05), ({"beta": 0.7}, 0.7)])
def test_dro_is_the_logprob_times_advantage_less_a_square(training, config, beta):
    now = logprobs(training)
    sampled = [lp - r for lp, r in zip(now, LOG_RATIOS, strict=True)]
    expected = -(np.array(now) * ADVANTAGES - 0.5 * beta * np.square(LOG_RATIOS))
    found = losses(training, "dro", config, logprobs=sampled, advantages=ADVANTAGES)
    assert found == pytest.approx(expected.tolist(), abs=1e-3)


def several(targets: np.ndarray, weights: np.ndarray, sparse: bool = False) -> tinker.Datum:
    """TOKENS with targets and weights of shape (N, K)."""

    def tensor(values: np.ndarray, dtype: Any) -> tinker.TensorData:
        if not sparse:
            return tinker.TensorData(data=values.ravel().tolist(), dtype=dtype, shape=list(values.shape))
        rows, columns = np.nonzero(weights)
        starts = np.searchsorted(rows, np.arange(len(values) + 1)).tolist()
        cells = values[rows, columns].tolist()
        indices = {"sparse_crow_indices": starts, "sparse_col_indices": columns.tolist()}
        return tinker.TensorData(data=cells, dtype=dtype, shape=list(values.shape), **indices)

    inputs = {"target_tokens": tensor(targets, "int64"), "weights": tensor(weights, "float32")}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(list(TOKENS[:-1])), loss_fn_inputs=inputs)


TARGETS_NK = np.stack([np.roll(TOKENS, shift)[1:] for shift in range(3)], axis=1)  # K = 3
WEIGHTS_NK = RANDOM.uniform(0.1, 2, TARGETS_NK.shape) * (np.arange(len(TOKENS) - 1) > 9)[:, None]


@pytest.mark.parametrize("sparse", [False, True])
def test_cross_entropy_has_several_targets_a_token(training, sparse):
    found = settled(training.forward([several(TARGETS_NK, WEIGHTS_NK, sparse)], "cross_entropy"))
    (values,) = found.loss_fn_outputs
    shape = TARGETS_NK.shape
    assert list(values["logprobs"].shape or []) == list(shape)
    scored = np.array(values["logprobs"].data).reshape(shape)
    rows = slice(10 if sparse else 0, None)  # a sparse tensor has no targets without weight
    assert scored[rows, 0] == pytest.approx(logprobs(training)[rows], abs=1e-4)
    ones = [raw(TARGETS_NK[:, place].tolist(), weights=[1.0] * shape[0]) for place in (1, 2)]
    for place, alone in enumerate(output(training.forward(ones, "cross_entropy"), "logprobs"), start=1):
        assert scored[rows, place] == pytest.approx(alone[rows], abs=1e-4)
    assert found.metrics["loss:sum"] == pytest.approx(-(scored * WEIGHTS_NK).sum(), abs=1e-2)


def raw(targets: list[int], **inputs: Sequence[float]) -> tinker.Datum:
    one = datum(TOKENS, **inputs)
    given = dict(one.loss_fn_inputs) | {"target_tokens": tinker.TensorData(data=targets, dtype="int64")}
    return tinker.Datum(model_input=one.model_input, loss_fn_inputs=given)


def test_the_gradient_of_several_targets_is_that_of_one_after_the_other(fresh):
    together, apart = fresh(), fresh()
    descend(together, [several(TARGETS_NK, WEIGHTS_NK)])
    columns = zip(TARGETS_NK.T.tolist(), WEIGHTS_NK.T.tolist(), strict=True)
    descend(apart, [raw(targets, weights=weights) for targets, weights in columns])
    assert logprobs(together) == pytest.approx(logprobs(apart), abs=1e-5)
    assert abs(total(together) - total(fresh())) > 1e-3


def test_ppo_does_not_push_what_is_clipped(training):
    """Every ratio is 2: above the threshold a good token gives no gradient, a bad one its whole."""
    sampled = [lp - math.log(2) for lp in logprobs(training)]
    good = datum(TOKENS, logprobs=sampled, advantages=[1.0] * len(sampled))
    assert gain(training, [good], loss_fn="ppo", loss_fn_config=THRESHOLDS) == pytest.approx(0, abs=1e-4)
    wide = {"clip_low_threshold": 0.9, "clip_high_threshold": 2.5}
    assert gain(training, [good], loss_fn="ppo", loss_fn_config=wide) > 1e-3


@pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_step_moves_probability_with_the_advantage(training, loss_fn, advantage):
    n = len(TOKENS) - 1
    now = datum(TOKENS, logprobs=logprobs(training), advantages=[advantage] * n)
    assert gain(training, [now], loss_fn=loss_fn) * advantage > 1e-3


def test_a_small_step_lowers_the_loss_by_its_rate_times_the_squared_gradient(training):
    before, rate = total(training), 2e-6
    metrics = descend(training, [weighted()], rate=rate)
    assert total(training) - before == pytest.approx(rate * metrics["grad_norm"] ** 2, rel=0.1)


def test_the_loss_is_summed_over_tokens_datums_and_calls(training):
    """A step of plain gradient descent gains in proportion to how often the datum counts."""
    one = gain(training, [weighted()])
    assert one > 1e-3
    for thrice in ([weighted(weight=3.0)],), ([weighted()] * 3,), ([weighted()], [weighted()], [weighted()]):
        assert gain(training, *thrice) == pytest.approx(3 * one, rel=0.1)


def test_a_datum_counts_the_same_beside_others_and_in_any_micro_batch(training):
    silent = [weighted(OTHER_TOKENS, 0.0)] * 10
    alone = gain(training, [weighted()])
    assert gain(training, [*silent, weighted()]) == pytest.approx(alone, rel=0.1)


def test_the_metrics_carry_the_summed_loss(training):
    answer = settled(training.forward([weighted(), weighted(OTHER_TOKENS, 2.0)], "cross_entropy"))
    expected = -total(training) - 2 * total(training, OTHER_TOKENS)
    assert answer.metrics["loss:sum"] == pytest.approx(expected, abs=1e-2)


def test_every_learning_rate_is_applied_and_reported(training):
    gains = {}
    for rate in (0.0, 1e-6, 2e-6):
        before = total(training)
        metrics = descend(training, [weighted()], rate=rate)
        assert metrics["learning_rate"] == pytest.approx(rate * EPS)
        gains[rate] = total(training) - before
    assert gains[0.0] == pytest.approx(0, abs=1e-4)
    assert gains[2e-6] == pytest.approx(2 * gains[1e-6], rel=0.1)


def test_gradients_are_clipped_by_their_global_norm(training):
    norm = descend(training, [weighted()], rate=0.0)["grad_norm"]
    whole = gain(training, [weighted()])
    assert gain(training, [weighted()], grad_clip_norm=norm / 2) == pytest.approx(whole / 2, rel=0.1)
    assert gain(training, [weighted()], grad_clip_norm=norm * 2) == pytest.approx(whole, rel=0.1)
    clipped = descend(training, [weighted()], rate=0.0, grad_clip_norm=norm / 2)
    assert clipped["grad_norm"] == pytest.approx(norm, rel=0.1), "the metric is the norm before clipping"


def test_weight_decay_shrinks_the_stepped_adapter_alone(fresh):
    decayed, bystander = fresh(), fresh()
    base = total(bystander)
    for client in (decayed, bystander):
        for _ in range(3):
            descend(client, [weighted()], rate=2e-5)
    learned = total(bystander)
    descend(decayed, [weighted(weight=0.0)], rate=1 / EPS, weight_decay=0.9)  # keeps a tenth of every weight
    assert learned - base > 0.1
    assert abs(total(decayed) - base) < 0.2 * (learned - base)
    assert total(bystander) == pytest.approx(learned, abs=1e-3)


def test_forward_leaves_no_gradient_behind(training):
    settled(training.forward([weighted(weight=1000.0)], "cross_entropy"))
    assert gain(training, [weighted(OTHER_TOKENS, 0.0)]) == pytest.approx(0, abs=1e-4)


def test_forward_backward_answers_with_the_weights_before_the_step(training):
    before = logprobs(training)
    computed = training.forward_backward([weighted()], "cross_entropy")
    found = output(computed, "logprobs")[0]
    descend(training)
    assert found == pytest.approx(before, abs=1e-4)
    assert sum(logprobs(training)) > sum(before)


def test_datums_of_different_lengths_each_get_their_own_logprobs(training):
    data = [weighted(), weighted(OTHER_TOKENS), weighted(TOKENS[:10])]
    found = output(training.forward(data, "cross_entropy"), "logprobs")
    assert [len(one) for one in found] == [len(TOKENS) - 1, len(OTHER_TOKENS) - 1, 9]
    assert found[1] == pytest.approx(logprobs(training, OTHER_TOKENS), abs=1e-4)
    assert found[2] == pytest.approx(found[0][:9], abs=1e-4)
