"""The warning of a policy that falls apart, at its borders."""

import pytest

from harbortrainer.training.drift import worsening


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
