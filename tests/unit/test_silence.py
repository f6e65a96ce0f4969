"""Which of a request's time the server is to blame for."""

from dataclasses import dataclass

import pytest

from harbortrainer.policy.silence import Silences


@dataclass
class Clock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("harbortrainer.policy.silence.time", clock)
    return clock


def answers(silences: Silences, clock: Clock, *seconds: float) -> None:
    for each in seconds:
        began = clock.now
        silences.asked(first=True)
        clock.now += each
        silences.answered(began)


def test_all_that_waited_learn_of_a_silence_that_the_first_answer_ended(clock: Clock) -> None:
    silences = Silences()
    silences.asked(first=True)
    first = clock.now
    clock.now += 70
    silences.asked(first=False)
    second = clock.now
    clock.now += 20
    assert (silences.since(first), silences.since(second)) == (90, 20)
    silences.answered(first)
    silences.answered(second)
    clock.now += 5
    assert (silences.since(first), silences.since(second), silences.since(clock.now)) == (90, 20, 0)


def test_a_server_that_answers_others_or_was_not_asked_is_not_silent(clock: Clock) -> None:
    silences = Silences()
    silences.asked(first=True)
    first = clock.now
    for _ in range(4):
        clock.now += 50
        silences.answered(clock.now - 1)
    assert silences.since(first) == 0
    clock.now += 1000
    silences.asked(first=True)
    clock.now += 50
    assert silences.since(first) == 0


def test_a_wait_within_twice_the_longest_of_the_newest_answers_is_usual(clock: Clock) -> None:
    silences = Silences()
    answers(silences, clock, 50.0)
    began = clock.now
    answers(silences, clock, 99.0)
    assert silences.since(began) == 0
    answers(silences, clock, *[1.0] * 128)
    began = clock.now
    answers(silences, clock, 99.0)
    assert silences.since(began) == 99
