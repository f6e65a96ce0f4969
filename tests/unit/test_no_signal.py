"""A line after batches in which no trial earned anything."""

from harbortrainer.training.drift import no_signal


def rows(*best: float | None) -> list[dict[str, float]]:
    return [{} if one is None else {"reward/best_of_group": one} for one in best]


def test_it_is_said_once_after_three_batches_without_a_reward() -> None:
    assert no_signal(rows(0, 0)) is None
    line = no_signal(rows(0, 0, 0))
    assert line is not None and line.startswith("WARNING: no trial of 3 batches earned a reward") and "\n" not in line
    assert no_signal(rows(0, 0, 0, 0)) is None, "said before"
    assert no_signal(rows(0.5, 0, 0, 0)) == line and no_signal(rows(0, 0, 0.1)) is None
    assert no_signal(rows(0, None, 0, 0)) == line, "a batch without a grade is none"
