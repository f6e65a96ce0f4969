"""Trials of Harbor's jobs as conversations: their ATIF trajectories, of those with enough reward."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harbortrainer.config import JOB
from harbortrainer.errors import UserError
from harbortrainer.policy.solution import terminus_answer
from harbortrainer.venues.harbor.outcome import read_reward

_TYPED, _DONE = "bash_command", "mark_task_complete"  # what Terminus-2 makes of its answers in its trajectory
_ANALYSIS, _PLAN = "Analysis: ", "Plan: "

Json = Mapping[str, Any]


def trials_of(folder: Path, min_reward: float) -> Iterator[tuple[str, Callable[[], Json]]]:
    """Yield (name, its record) of each trial below the folder of a job. Reading raises ValueError: why it is left out.

    Raises UserError for a folder without trials.
    """
    found = False
    for file in sorted(folder.rglob("result.json")):
        result = _read(file)
        if isinstance(result, dict) and "trial_name" in result:
            found = True
            yield str(result["trial_name"]), partial(_record, file.parent, result, min_reward)
    if not found:
        raise UserError(f"data={JOB}{folder}: holds no trial; name the folder of a job (jobs/NAME)")


def _record(folder: Path, result: Json, min_reward: float) -> Json:
    reward, why = read_reward((result.get("verifier_result") or {}).get("rewards"))
    if reward is None:
        raise ValueError(f"not graded ({why})")
    if reward < min_reward:
        raise ValueError(f"reward below min_reward={min_reward:g}")
    trajectory = _read(folder / "agent" / "trajectory.json")
    if not isinstance(trajectory, dict):
        raise ValueError("no agent/trajectory.json that can be read")
    try:
        declared = trajectory["agent"].get("tool_definitions") or []
        messages = list(_messages(trajectory))
    except (AttributeError, KeyError, TypeError):
        raise ValueError("agent/trajectory.json is no ATIF") from None
    return {"task": str(result.get("task_name", "")).rpartition("/")[2], "messages": messages, "tools": declared}


def _messages(trajectory: Json) -> Iterator[Json]:
    """In OpenAI's form. Thoughts are left out. Raises ValueError for a history that was rewritten."""
    own = trajectory["agent"]["name"] == "terminus-2"
    if trajectory.get("continued_trajectory_ref"):
        raise ValueError("its history was summarised")
    for step in trajectory["steps"]:
        if step.get("is_copied_context") or "context_management" in (step.get("extra") or {}):
            raise ValueError("its history was summarised")
        results = (step.get("observation") or {}).get("results") or []
        seen = [one["content"] for one in results if one.get("content") is not None]
        if step["source"] != "agent":
            yield {"role": step["source"], "content": step["message"]}
        elif own:
            yield {"role": "assistant", "content": _terminus(step)}
        else:
            calls = [_call(one) for one in step.get("tool_calls") or ()]
            yield {"role": "assistant", "content": step["message"], "tool_calls": calls}
        of_tools = step["source"] == "agent" and not own and step.get("tool_calls")
        yield from ({"role": "tool" if of_tools else "user", "content": content} for content in seen)


def _call(call: Json) -> Json:
    return {"function": {"name": call["function_name"], "arguments": call["arguments"]}}


def _terminus(step: Json) -> str:
    """The answer of a step: as it was where the trajectory has it, else from what it was parsed into."""
    text, calls = step["message"], step.get("tool_calls") or []
    if not calls and text and not text.startswith((_ANALYSIS, _PLAN)):
        return text  # trajectory_config.raw_content, or an answer that could not be parsed
    analysis, _, plan = text.partition(f"\n{_PLAN}")
    if text.startswith(_PLAN):
        analysis, plan = "", text.removeprefix(_PLAN)
    commands = [call["arguments"] for call in calls if call["function_name"] == _TYPED]
    complete = any(call["function_name"] == _DONE for call in calls)
    return terminus_answer(analysis.removeprefix(_ANALYSIS), plan, commands, complete)


def _read(file: Path) -> Any:
    """None = damaged or missing."""
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
