"""A folder as `harbor run` leaves it: trials of Terminus-2 and of an agent with tools, by the models of Harbor."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harbor.models.trajectories.agent import Agent
from harbor.models.trajectories.observation import Observation
from harbor.models.trajectories.observation_result import ObservationResult
from harbor.models.trajectories.step import Step
from harbor.models.trajectories.tool_call import ToolCall
from harbor.models.trajectories.trajectory import Trajectory

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = {"type": "function", "function": {"name": "bash", "description": "runs a command", "parameters": SCHEMA}}


def write_trial(
    job: Path, name: str, reward: float | None, trajectory: Trajectory | None, task: str = "org/one"
) -> None:
    folder = job / name
    (folder / "agent").mkdir(parents=True)
    graded = None if reward is None else {"rewards": {"reward": reward}}
    (folder / "result.json").write_text(
        json.dumps({"task_name": task, "trial_name": name, "verifier_result": graded, "exception_info": None})
    )
    if trajectory is not None:
        (folder / "agent" / "trajectory.json").write_text(trajectory.model_dump_json(exclude_none=True))


def terminus(prompt: str, answers: Sequence[dict[str, Any] | str], *, raw: bool = False, **more: Any) -> Trajectory:
    """As Terminus-2 writes it: answers that it parsed, as analysis, plan and calls; `raw`, or a text: as it was."""
    steps = [Step(step_id=1, source="user", message=prompt)]
    for number, answer in enumerate(answers):
        seen = Observation(results=[ObservationResult(content=f"screen {number}\n")])
        about: dict[str, Any] = {"step_id": number + 2, "source": "agent", "observation": seen}
        if raw or isinstance(answer, str):
            steps.append(Step(message=answer if isinstance(answer, str) else json.dumps(answer), **about))
            continue
        calls = [
            ToolCall(tool_call_id=f"c{number}_{i}", function_name="bash_command", arguments=command)
            for i, command in enumerate(answer["commands"])
        ]
        if answer["task_complete"]:
            calls.append(ToolCall(tool_call_id=f"c{number}", function_name="mark_task_complete", arguments={}))
        said = [f"{name.title()}: {answer[name]}" for name in ("analysis", "plan") if answer[name]]
        steps.append(Step(message="\n".join(said), tool_calls=calls or None, **about))
    return Trajectory(agent=Agent(name="terminus-2", version="1"), steps=steps, **more)


def with_tools(prompt: str, command: str, seen: str, end: str) -> Trajectory:
    """One call and its result, then the last answer."""
    call = ToolCall(tool_call_id="c", function_name="bash", arguments={"command": command})
    result = Observation(results=[ObservationResult(source_call_id="c", content=seen)])
    steps = [
        Step(step_id=1, source="system", message="be brief"),
        Step(step_id=2, source="user", message=prompt),
        Step(
            step_id=3, source="agent", message="I look.", tool_calls=[call], observation=result, reasoning_content="?"
        ),
        Step(step_id=4, source="agent", message=end),
    ]
    return Trajectory(agent=Agent(name="other", version="1", tool_definitions=[TOOL]), steps=steps)
