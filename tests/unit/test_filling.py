"""Waves of samples wait for those who were just answered, for a part of the last wave's time."""

import pytest

from repairs.filling import LEAST_SEC, SHARE, Filling

WAVE_SEC, SEATS = 20.0, 16


BEFORE, AFTER = list(range(1, 100)), list(range(100, 200))  # numbers of requests: as the wave ran, and later ones


def after_a_wave(answered: int, seconds: float = WAVE_SEC) -> Filling:
    filling = Filling()
    filling.ended(0.0, answered, seconds, newest=BEFORE[-1])
    return filling


def test_the_first_wave_begins_at_once() -> None:
    assert Filling().is_full(0.0, [1], SEATS)


def test_one_client_never_waits() -> None:
    assert after_a_wave(answered=1).is_full(0.1, AFTER[:1], SEATS)


@pytest.mark.parametrize(("asked_meanwhile", "answered"), [(7, 9), (0, 16)])
def test_a_wave_waits_until_those_who_were_answered_are_back(asked_meanwhile: int, answered: int) -> None:
    filling, others = after_a_wave(answered), BEFORE[:asked_meanwhile]
    assert not filling.is_full(0.5, others + AFTER[:1], SEATS)
    assert not filling.is_full(1.0, others + AFTER[: answered - 1], SEATS)
    assert filling.is_full(1.5, others + AFTER[:answered], SEATS)


def test_it_waits_for_a_part_of_the_last_waves_time_and_for_no_more_than_its_seats() -> None:
    filling = after_a_wave(answered=9)
    assert not filling.is_full(0.0, BEFORE[:7], SEATS)
    assert filling.is_full(SHARE * WAVE_SEC, BEFORE[:7] + AFTER[:1], SEATS)
    assert after_a_wave(answered=16).is_full(0.0, BEFORE[:16], SEATS), "as many as there are seats"
    assert after_a_wave(answered=9, seconds=LEAST_SEC / 2).is_full(0.0, BEFORE[:1], SEATS), "short waves: at once"
