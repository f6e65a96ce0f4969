"""The grade of a finished conversation, equal to tau2's `evaluate_simulation` (`bench.tau_grade` compares them).

The product over the task's `reward_basis`: DB, ENV_ASSERTION, COMMUNICATE, ACTION. tau2 replays all calls in a new
environment; here the conversation's own world is its end state, and the gold end state is computed once a task.
"""

from collections.abc import Sequence
from typing import Any

from harbortrainer.bundled.tau.domain import Domain, World
from harbortrainer.policy.tools import ToolCall

BASES = ("DB", "ENV_ASSERTION", "COMMUNICATE", "ACTION")  # those that need no LLM


def parts(domain: Domain, task: Any, world: World, said: Sequence[str], calls: Sequence[ToolCall]) -> dict[str, float]:
    """Return the grade by basis, each 0 or 1; {} = the task has no criteria.

    `said`: all texts of the agent, the greeting and those beside calls included; `calls`: of agent and user.
    """
    criteria = task.evaluation_criteria
    if criteria is None:
        return {}
    checks = {
        "DB": lambda: _ungraded(criteria) or domain.state(world) == domain.gold(task),
        "ENV_ASSERTION": lambda: _ungraded(criteria) or all(map(world.holds, criteria.env_assertions or [])),
        "COMMUNICATE": lambda: all(_was_said(text, said) for text in criteria.communicate_info or []),
        "ACTION": lambda: all(any(_fits(action, call) for call in calls) for action in criteria.actions or []),
    }
    return {basis.value: float(checks[basis.value]()) for basis in criteria.reward_basis}


def grade(parts: dict[str, float]) -> float:
    """Return 1 when every part is met, else 0."""
    return float(all(parts.values()))


def _ungraded(criteria: Any) -> bool:
    """Whether tau2 compares no environment, since the task has neither actions nor assertions."""
    return criteria.actions is None and criteria.env_assertions is None


def _was_said(text: str, said: Sequence[str]) -> bool:
    """As a part of one text, in lower case, its commas left out."""
    return any(one.strip() and text.lower() in one.lower().replace(",", "") for one in said)


def _fits(action: Any, call: ToolCall) -> bool:
    """tau2's `Action.compare_with_tool_call`: without `compare_args` only arguments of the call are compared."""
    if action.name != call.name:
        return False
    names = call.arguments.keys() if action.compare_args is None else action.compare_args
    if not names:
        return True
    of_call = {name: value for name, value in call.arguments.items() if name in names}
    return of_call == {name: value for name, value in action.arguments.items() if name in names}
