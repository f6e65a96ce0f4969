"""The outcome of a trial, the quarantine of tasks that keep failing, and verifiers that could not install."""

import math
from typing import TYPE_CHECKING

from harbortrainer.learning.trajectory import Outcome
from harbortrainer.learning.treatment import UNFIT
from harbortrainer.policy.tinker_llm import TinkerLLM
from harbortrainer.rollout.quarantine import SAMPLING, UNANSWERED
from harbortrainer.text import shortened

if TYPE_CHECKING:
    from harbor.models.trial.result import ExceptionInfo, TrialResult

# The agent's stop reason -> outcome of a trial that was graded.
GRADED = {
    "done": Outcome.COMPLETED,
    "session_ended": Outcome.COMPLETED,  # the policy left its shell: it considers the task done
    "max_turns": Outcome.MAX_TURNS,
    "context_length": Outcome.CONTEXT_LENGTH,
    "timeout": Outcome.AGENT_TIMEOUT,
    "interrupted": Outcome.AGENT_TIMEOUT,  # by Harbor's own limit on the agent; nothing else is graded after that
    "policy_error": Outcome.POLICY_ERROR,
}
_ENDS = 100, 300  # characters of an exception's message, its first and its last, that a detail has

Verdict = tuple[Outcome, str, float | None]  # outcome, detail in one line, reward


def classify(result: "TrialResult", llm: TinkerLLM) -> Verdict:
    """Return the outcome, detail and reward of a finished trial; only trainable outcomes have a reward."""
    if llm.fault is not None:
        return Outcome.INFRASTRUCTURE_ERROR, SAMPLING + str(llm.fault), None
    sampled = any(turn.completion_tokens_T for turn in llm.turns)
    if llm.full and not sampled:  # whatever the verifier did
        return Outcome.INFRASTRUCTURE_ERROR, UNFIT + llm.full, None
    if (lost := without_grade(result)) is not None:
        return lost
    reward, problem = read_reward(result.verifier_result.rewards if result.verifier_result else None)
    if reward is None:
        return Outcome.VERIFIER_ERROR, problem, None
    if not sampled:
        detail = UNANSWERED if llm.unanswered else "nothing was sampled before the trial ended"
        return Outcome.INFRASTRUCTURE_ERROR, detail, None
    detail = "the policy ended its shell" if llm.stop_reason == "session_ended" else ""
    return GRADED[llm.stop_reason], detail, reward


def without_grade(result: "TrialResult") -> Verdict | None:
    """Return the verdict on a trial whose grade an exception prevented; None = none did."""
    if (fault := ungraded(result)) is None:
        return None
    return _blame(result, fault), in_short(fault.exception_type, fault.exception_message), None


def in_short(kind: str, message: str) -> str:
    """Return an exception in one line."""
    ends = shortened(" ".join(message.split()), *_ENDS)  # a command first, why it failed last
    return f"{kind}: {' '.join(ends.split())}"


def read_reward(rewards: dict[str, float | int] | None) -> tuple[float | None, str]:
    """Return the value of `reward`, else the only number; or None and the reason."""
    if not rewards:
        return None, "the verifier left no reward"
    if "reward" not in rewards and len(rewards) > 1:
        return None, f"reward.json has no key 'reward' but {', '.join(sorted(rewards))}; name one of them reward"
    value = float(rewards["reward"] if "reward" in rewards else next(iter(rewards.values())))
    return (value, "") if math.isfinite(value) else (None, f"the reward is {value}")


def recorded(result: "TrialResult") -> "list[ExceptionInfo]":
    """Return every exception that Harbor kept, the trial's before those of its steps."""
    found = [result.exception_info, *(step.exception_info for step in result.step_results or [])]
    return [info for info in found if info is not None]


def ungraded(result: "TrialResult") -> "ExceptionInfo | None":
    """Return the first exception that prevented a grade; a timeout of the agent does not."""
    from harbor.trial.errors import AgentTimeoutError

    return next((info for info in recorded(result) if info.exception_type != AgentTimeoutError.__name__), None)


def _blame(result: "TrialResult", fault: "ExceptionInfo") -> Outcome:
    """The verifier's fault, when Harbor's table says so or its phase had begun; otherwise the infrastructure's."""
    from harbor.models.trial.error_policy import FailureCause

    if fault.policy.cause is FailureCause.CANCELLED:
        return Outcome.CANCELLED
    started = result.verifier is not None or any(step.verifier for step in result.step_results or [])
    verifier = fault.policy.cause is FailureCause.VERIFIER_FAILED or started
    return Outcome.VERIFIER_ERROR if verifier else Outcome.INFRASTRUCTURE_ERROR
