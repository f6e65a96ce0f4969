"""Every way a trial can end has one outcome, and only graded ones carry a reward."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from harbor.models.trial.result import ExceptionInfo, TimingInfo

from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.learning.treatment import TREATMENTS, UNFIT, Treatment
from harbortrainer.policy.sampler import SamplingError
from harbortrainer.rollout.quarantine import SAMPLING, UNANSWERED, blames_task
from harbortrainer.venues.harbor.outcome import GRADED, classify, read_reward

TURN = Turn(0, (1,), (2,), (-0.5,), 0)


def fault(kind: str, message: str = "boom\nsecond line") -> ExceptionInfo:
    return ExceptionInfo(
        exception_type=kind, exception_message=message, exception_traceback="", occurred_at=datetime.now(UTC)
    )


def result(rewards: dict[str, float] | None = None, error: str | None = None, *, verifying: bool = True) -> Any:
    return SimpleNamespace(
        verifier_result=SimpleNamespace(rewards=rewards) if rewards is not None else None,
        exception_info=fault(error) if error else None,
        verifier=TimingInfo() if verifying else None,
        step_results=None,
    )


def llm(
    stop_reason: str = "done", *, turns: tuple[Turn, ...] = (TURN,), broken: str = "", unanswered: bool = False
) -> Any:
    error = SamplingError(broken) if broken else None
    about: dict[str, Any] = {"turns": list(turns), "fault": error, "unanswered": unanswered, "full": ""}
    return SimpleNamespace(stop_reason=stop_reason, **about)


def test_the_end_of_a_long_message_is_in_the_detail() -> None:
    found = result(error="RuntimeError")
    message = f"Command: docker {'--file x ' * 99}failed no such service: db"
    found.exception_info = fault("RuntimeError", message.replace("failed ", "failed\n"))
    _, detail, _ = classify(found, llm())
    left_out = f"[… {len(message) - 400} characters left out …]"
    assert detail == f"RuntimeError: {message[:100].strip()} {left_out} {message[-300:].strip()}"


@pytest.mark.parametrize("stop_reason", GRADED)
def test_graded_trials_keep_the_verifiers_reward(stop_reason: str) -> None:
    """Also where Harbor recorded that its own limit on the agent was reached."""
    detail = "the policy ended its shell" if stop_reason == "session_ended" else ""
    for error in (None, "AgentTimeoutError"):
        verdict = classify(result({"reward": 0.5}, error), llm(stop_reason))
        assert verdict == (GRADED[stop_reason], detail, 0.5) and TREATMENTS[verdict[0]] is Treatment.TRAIN


@pytest.mark.parametrize(
    ("error", "verifying", "expected"),
    [
        ("EnvironmentStartTimeoutError", False, Outcome.INFRASTRUCTURE_ERROR),
        ("ContextWindowExceededError", False, Outcome.INFRASTRUCTURE_ERROR),
        ("RuntimeError", False, Outcome.INFRASTRUCTURE_ERROR),
        ("RuntimeError", True, Outcome.VERIFIER_ERROR),
        ("RewardFileNotFoundError", True, Outcome.VERIFIER_ERROR),
        ("RewardFileEmptyError", True, Outcome.VERIFIER_ERROR),
        ("VerifierTimeoutError", False, Outcome.VERIFIER_ERROR),
        ("CancelledError", False, Outcome.CANCELLED),
    ],
)
def test_faults_have_no_reward_and_say_why_in_one_line(error: str, verifying: bool, expected: Outcome) -> None:
    outcome, detail, reward = classify(result(None, error, verifying=verifying), llm())
    assert (outcome, reward) == (expected, None)
    assert detail == f"{error}: boom second line"


def test_a_fault_of_the_sampler_wins_over_the_reward() -> None:
    outcome, detail, reward = classify(result({"reward": 1.0}), llm(broken="no answer"))
    assert (outcome, detail, reward) == (Outcome.INFRASTRUCTURE_ERROR, SAMPLING + "no answer", None)


def test_a_trial_whose_first_request_was_never_answered_does_not_count_against_its_task() -> None:
    """Four of 32 good tasks were left out of a run for good after two outages."""
    ended = classify(result({"reward": 0.0}), llm("timeout", turns=(), unanswered=True))
    assert ended == (Outcome.INFRASTRUCTURE_ERROR, UNANSWERED, None)
    assert not blames_task(Trajectory("t", "n", (), None, ended[0], ended[1]))
    assert classify(result({"reward": 0.0}), llm("timeout", unanswered=True))[2] == 0.0


def test_a_timeout_before_anything_was_sampled_is_the_infrastructures() -> None:
    verdict = classify(result({"reward": 0.0}, "AgentTimeoutError"), llm("interrupted", turns=()))
    assert verdict == (Outcome.INFRASTRUCTURE_ERROR, "nothing was sampled before the trial ended", None)


def test_an_instruction_that_is_too_long_is_named() -> None:
    policy = llm("context_length", turns=())
    policy.full = "the prompt has 9 tokens"
    verdict = Outcome.INFRASTRUCTURE_ERROR, f"{UNFIT}the prompt has 9 tokens", None
    assert classify(result({"reward": 0.0}), policy) == verdict
    assert classify(result(None, "RewardFileNotFoundError", verifying=True), policy) == verdict
    policy.turns = [TURN]
    assert classify(result({"reward": 0.0}), policy) == (Outcome.CONTEXT_LENGTH, "", 0.0)


def test_a_step_of_a_multi_step_trial_can_spoil_it() -> None:
    several = result({"reward": 1.0})
    several.step_results = [SimpleNamespace(exception_info=fault("RewardFileNotFoundError"), verifier=TimingInfo())]
    assert classify(several, llm())[0] is Outcome.VERIFIER_ERROR


@pytest.mark.parametrize(
    ("rewards", "expected", "problem"),
    [
        ({"reward": 1}, 1.0, ""),
        ({"speed": 9, "reward": 0.25}, 0.25, ""),
        ({"score": 0.5}, 0.5, ""),
        ({"b": 1, "a": 2}, None, "reward.json has no key 'reward' but a, b; name one of them reward"),
        ({"reward": float("nan")}, None, "the reward is nan"),
        ({}, None, "the verifier left no reward"),
        (None, None, "the verifier left no reward"),
    ],
)
def test_read_reward(rewards: dict[str, float] | None, expected: float | None, problem: str) -> None:
    assert read_reward(rewards) == (expected, problem)
    assert classify(result(rewards), llm())[1:] == (problem, expected)
