"""Conversations for fine-tuning: files of them, and runs whose trials become them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.run.trajectories import write_trajectory


def conversation(prompt: str, *answers: str, task: str | None = None) -> dict[str, Any]:
    """`prompt`, then each answer with a screen between."""
    messages = [{"role": "user", "content": prompt}]
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "the screen"}]
    return {"messages": messages[:-1]} | ({"task": task} if task else {})


def write_conversations(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_run(
    folder: Path, rewards: Mapping[str, Sequence[float | None]], held_out: Sequence[str] = (), **config: Any
) -> Path:
    """A run directory with one training batch: the rewards of each task's group. Held-out tasks have trials too."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_name": "models/one"} | config))
    (folder / "split.json").write_text(json.dumps({"train": {}, "held_out": {name: {} for name in held_out}}))
    for problem, (task, of_group) in enumerate(rewards.items()):
        for member, reward in enumerate(of_group):
            write_trajectory(
                folder / "trajectories" / "step_000000", trial(f"s000000-p{problem:02d}-g{member:02d}", task, reward)
            )
    return folder


def trial(name: str, task: str, reward: float | None) -> Trajectory:
    """Two turns."""
    number = sum(name.encode()) % 50
    turns = tuple(
        Turn(0, (number, number + 1, turn), (70 + turn, 80), (-0.5, -0.25), 3, roles_T=bytes([0, 2 * turn, 0]))
        for turn in range(2)
    )
    outcome = Outcome.COMPLETED if reward is not None else Outcome.INFRASTRUCTURE_ERROR
    return Trajectory(task, name, turns, reward, outcome)
