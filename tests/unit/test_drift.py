"""The warning of a policy that drifts from its start while its held-out reward stands still, at its borders."""

import pytest

from harbortrainer.training.drift import DRIFT_NATS, drift_warning


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
