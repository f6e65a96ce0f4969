"""The warning of a policy that drifts from its start while its held-out reward stands still, at its borders."""

import pytest

from harbortrainer.training.drift import DRIFT_NATS, drift_warning, worsening


def evaluation(step: int, reward: float, kl: float | None, stderr: float = 0.0625) -> dict[str, float]:
    row = {"global_step": step, "eval/reward_mean": reward, "eval/reward_stderr": stderr}
    return row if kl is None else row | {"kl/start": kl}


START = evaluation(0, 0.5, None)


@pytest.mark.parametrize(
    ("grown", "risen", "warned"),
    [
        (DRIFT_NATS, 0.0, False),
        (DRIFT_NATS + 1e-6, 0.0, True),
        (1.0, 0.0625, True),
        (1.0, 0.0625001, False),
        (1.0, -0.3, True),
        (-1.0, -0.3, False),
    ],
)
def test_both_sides_of_each_limit(grown: float, risen: float, warned: bool) -> None:
    assert (drift_warning([START, evaluation(5, 0.5 + risen, grown)]) is not None) == warned


def test_the_line_names_both_numbers_and_the_fix() -> None:
    assert drift_warning([START, evaluation(5, 0.48, 1.12)]) == (
        "WARNING: the policy drifts without learning: since the evaluation after step 0 kl/start grew from 0.00 to "
        "1.12 nats a token and held-out reward went from 0.500 to 0.480 (± 0.062); set kl_penalty_coef with "
        "kl_reference=start, or lower learning_rate"
    )


def test_it_is_measured_from_the_best_evaluation_not_from_the_last() -> None:
    best, lucky = evaluation(5, 0.9, 1.0), evaluation(10, 0.85, 1.15)
    line = drift_warning([START, best, lucky, evaluation(15, 0.88, 1.3)])
    assert line is not None and "after step 5 kl/start grew from 1.00 to 1.30" in line
    assert drift_warning([START, best, lucky]) is None


def test_a_skipped_batch_has_the_drift_of_the_row_before() -> None:
    rows = [START, {"global_step": 4, "kl/start": 0.4}, evaluation(5, 0.5, None)]
    line = drift_warning(rows)
    assert line is not None and "0.40" in line


def test_other_rows_and_the_first_evaluation_say_nothing() -> None:
    assert drift_warning([]) is None
    assert drift_warning([START]) is None
    assert drift_warning([START, evaluation(5, 0.5, 1.0), {"global_step": 6, "kl/start": 2.0}]) is None
    assert drift_warning([START, evaluation(5, 0.5, None)]) is None, "a server that scores no given tokens"


def batch(unreadable: float, kl: float = 0.1, at_limit: float = 8, reward: float = 0.8) -> dict[str, float]:
    return {
        "turn/parse_failure_rate": unreadable, "kl/start": kl, "outcome/max_turns": at_limit, "rollout/trials": 32,
        "reward/mean": reward,
    }  # fmt: skip


GOOD = batch(0.02)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (batch(0.3), "answers that cannot be read: 0.02 at best, 0.30 now"),
        (batch(0.02, at_limit=24), "trials that end at max_turns: 0.25 at best, 0.75 now"),
        (batch(0.02, kl=1.3), "nats a token from the start (kl/start): 0.00 at best, 1.30 now"),
    ],
)
def test_a_policy_that_falls_apart_is_named_at_the_second_batch_though_its_reward_is_high(
    bad: dict[str, float], said: str
) -> None:
    assert worsening([GOOD] * 5) is None and worsening([GOOD, GOOD, bad]) is None, "one batch may be chance"
    line = worsening([GOOD, GOOD, bad, bad])
    assert line is not None and said in line and "(reward 0.80)" in line and "\n" not in line
    assert worsening([GOOD, GOOD, bad, bad, bad]) is None, "said before"
    assert worsening([GOOD, bad, GOOD, bad]) is None
    assert worsening([GOOD, {}, bad, {"optim/steps": 0.0}, bad]) == line, "steps without trials are no batches"


def test_a_second_sign_is_said_too_and_a_weak_start_is_no_drift() -> None:
    bad, worse = batch(0.3), batch(0.4, kl=1.5)
    line = worsening([GOOD, bad, bad, worse, worse])
    assert line is not None and "1.50 now" in line
    assert worsening([batch(0.6), batch(0.5), batch(0.4)]) is None
    assert worsening([batch(0.6), batch(0.6)]) is None
