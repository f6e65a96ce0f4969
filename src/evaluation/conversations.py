"""Whole conversations with reward and outcome, kept as JSON lines."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from src.chat_template import ChatTemplate
from src.evaluation.messages import Transcriber
from src.learning.trajectory import Trajectory, TrajectoryGroup
from src.run.directory import RunDirectory
from src.run.files import make_folder, replace_text

FOLDER = "conversations"


class Conversations:
    """Keeps them as a run goes on: `conversations/eval_000010.jsonl`, `conversations/step_000010.jsonl`."""

    def __init__(self, run: RunDirectory, template: ChatTemplate) -> None:
        self._folder = run.path / FOLDER
        self._transcriber = Transcriber(template)

    def save(self, batch: str, groups_P: Iterable[TrajectoryGroup]) -> None:
        """Every trial of an evaluation, sampled ones of a training batch. Blocks. Raises DiskFault."""
        trials = [t for group in groups_P for t in (*group.trajectories_G, *group.lost)]
        self.write(batch, sampled_of(trials) if batch.startswith("step") else trials)

    def write(self, name: str, trajectories: Iterable[Trajectory]) -> Path:
        """One line a trial: task, trial, reward, outcome, weights and all messages."""
        make_folder(self._folder)
        path = self._folder / f"{name}.jsonl"
        replace_text(path, "".join(json.dumps(record(t, self._transcriber)) + "\n" for t in trajectories))
        return path


def record(trajectory: Trajectory, transcriber: Transcriber) -> dict[str, Any]:
    """A trial as JSON values."""
    return {
        "task": trajectory.task_name,
        "trial": trajectory.trial_name,
        "reward": trajectory.reward,
        "outcome": trajectory.outcome.value,
        "detail": trajectory.detail,
        "weights_version": trajectory.turns[0].weights_version if trajectory.turns else None,
        "messages": transcriber.conversation(trajectory),
    }


def sampled_of(trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Of each task in a training batch the first trial of each reward: what was rewarded, beside what was not."""
    seen: set[tuple[str, float | None]] = set()
    for trajectory in trajectories:
        key = (trajectory.task_name, trajectory.reward)
        if key not in seen:
            seen.add(key)
            yield trajectory
