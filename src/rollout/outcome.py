"""How a trial ended, and which tasks are left out of a run because their trials keep failing."""

import math
from typing import TYPE_CHECKING

from src.learning.trajectory import Outcome, Trajectory
from src.tinker_llm import TinkerLLM

if TYPE_CHECKING:
    from harbor.models.trial.result import ExceptionInfo, TrialResult
import logging
from collections import Counter
from collections.abc import Mapping

# The agent's stop reason -> outcome of a trial that was graded.
GRADED = {
    "done": Outcome.COMPLETED,
    "session_ended": Outcome.COMPLETED,  # the policy left its shell: its way to say that it is done
    "max_turns": Outcome.MAX_TURNS,
    "context_length": Outcome.CONTEXT_LENGTH,
    "timeout": Outcome.AGENT_TIMEOUT,
    "interrupted": Outcome.AGENT_TIMEOUT,  # by Harbor's own limit on the agent; nothing else is graded after that
    "policy_error": Outcome.POLICY_ERROR,
}

SAMPLING = "sampling: "  # begins the detail of a trial that was lost to the server

_NO_SPACE = "no space left on device"  # in Docker's answers, which say so in words only

Verdict = tuple[Outcome, str, float | None]  # outcome, detail in one line, reward


def classify(result: "TrialResult", llm: TinkerLLM) -> Verdict:
    """Outcome, detail and reward of a finished trial. A reward is given exactly where the outcome is trained on."""
    if llm.fault is not None:
        return Outcome.INFRASTRUCTURE_ERROR, SAMPLING + str(llm.fault), None
    fault = ungraded(result)
    if fault is not None:
        detail = f"{fault.exception_type}: {' '.join(fault.exception_message.split())[:300]}"
        return _blame(result, fault), detail, None
    reward, problem = read_reward(result.verifier_result.rewards if result.verifier_result else None)
    if reward is None:
        return Outcome.VERIFIER_ERROR, problem, None
    if not any(turn.completion_tokens_T for turn in llm.turns):
        return Outcome.INFRASTRUCTURE_ERROR, "nothing was sampled before the trial ended", None
    return GRADED[llm.stop_reason], _detail(llm), reward


def lost_to_server(trajectory: Trajectory) -> bool:
    return trajectory.detail.startswith(SAMPLING)


def blames_task(trajectory: Trajectory) -> bool:
    """Whether a trial without a reward speaks against its task: not against the server, the policy or Docker's disk."""
    if _NO_SPACE in trajectory.detail.lower() or lost_to_server(trajectory):
        return False
    return trajectory.outcome in (Outcome.VERIFIER_ERROR, Outcome.INFRASTRUCTURE_ERROR)


def read_reward(rewards: dict[str, float | int] | None) -> tuple[float | None, str]:
    """The reward, or why there is none: `reward` by name, else the only number there is."""
    if not rewards:
        return None, "the verifier left no reward"
    if "reward" not in rewards and len(rewards) > 1:
        return None, f"reward.json has no key 'reward' but {', '.join(sorted(rewards))}; name one of them reward"
    value = float(rewards["reward"] if "reward" in rewards else next(iter(rewards.values())))
    return (value, "") if math.isfinite(value) else (None, f"the reward is {value}")


def recorded(result: "TrialResult") -> "list[ExceptionInfo]":
    """Every exception that Harbor kept, the trial's before those of its steps."""
    found = [result.exception_info, *(step.exception_info for step in result.step_results or [])]
    return [info for info in found if info is not None]


def ungraded(result: "TrialResult") -> "ExceptionInfo | None":
    """The first exception that kept a trial from its grade; a timeout of the agent does not."""
    from harbor.trial.errors import AgentTimeoutError

    return next((info for info in recorded(result) if info.exception_type != AgentTimeoutError.__name__), None)


def _blame(result: "TrialResult", fault: "ExceptionInfo") -> Outcome:
    """The verifier's, when Harbor's table says so or its phase had begun; otherwise the infrastructure's."""
    from harbor.models.trial.error_policy import FailureCause

    if fault.policy.cause is FailureCause.CANCELLED:
        return Outcome.CANCELLED
    started = result.verifier is not None or any(step.verifier for step in result.step_results or [])
    verifier = fault.policy.cause is FailureCause.VERIFIER_FAILED or started
    return Outcome.VERIFIER_ERROR if verifier else Outcome.INFRASTRUCTURE_ERROR


def _detail(llm: TinkerLLM) -> str:
    return "the policy ended its shell" if llm.stop_reason == "session_ended" else ""


log = logging.getLogger("harbortrainer")


class Quarantine:
    """`limit` faults of a task in a row, none of the server's or the policy's, and it is not started again; 0 = never.

    `reasons`: task name -> why, those of an earlier process included.
    """

    def __init__(self, limit: int, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        self._limit = limit
        self._in_a_row: Counter[str] = Counter()

    def note(self, trajectory: Trajectory) -> None:
        """Count a finished trial."""
        task = trajectory.task_name
        if trajectory.reward is not None:
            self._in_a_row[task] = 0
        elif blames_task(trajectory):
            self._in_a_row[task] += 1
            if self._limit and self._in_a_row[task] >= self._limit and task not in self.reasons:
                self.reasons[task] = f"{trajectory.outcome}: {trajectory.detail}"
                log.warning(
                    "task %s is left out of the run after %d faults in a row, the last: %s",
                    task, self._in_a_row[task], self.reasons[task],
                )  # fmt: skip
