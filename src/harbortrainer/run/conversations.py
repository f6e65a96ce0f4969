"""Conversations of trials with reward and outcome: cut into messages, and written as JSON lines."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harbortrainer.durable.files import make_folder, replace_text
from harbortrainer.learning.trajectory import Trajectory, TrajectoryGroup, Turn
from harbortrainer.policy.chat_template import MARKER, ChatTemplate
from harbortrainer.run.directory import RunDirectory

Message = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Transcriber:
    """Turns trajectories into messages without the template's own text; an unrecognised prompt has role "prompt"."""

    template: ChatTemplate

    def conversation(self, trajectory: Trajectory) -> list[Message]:
        """Messages in order: role and content; answers also have thinking, tokens and whether they were truncated.

        A message of role "history" begins each new segment: there the history was rewritten.
        """
        messages: list[Message] = []
        segment = 0
        for position, turn in enumerate(trajectory.turns):
            opens = position == 0 or turn.segment != segment
            if turn.segment != segment:
                messages.append({"role": "history", "content": "rewritten: what follows is a new prompt"})
            segment = turn.segment
            messages += [self._prompt(turn, opens=opens), self._answer(turn)]
        return messages

    def _prompt(self, turn: Turn, *, opens: bool) -> Message:
        text = self._decode(turn.new_tokens_T)
        head, tail = self._opening if opens else self._joining
        if not text.startswith(head) and not opens and self.template.turn_end is not None:
            head = head.removeprefix(self._decode([self.template.turn_end]))  # it was sampled already
        body = text.removeprefix(head).removesuffix(tail)
        if text == head + body + tail and not self._rendered(body):
            return {"role": "user", "content": body}
        return {"role": "prompt", "content": text}

    def _answer(self, turn: Turn) -> Message:
        answer = self.template.answer(turn.completion_tokens_T)
        message: Message = {"role": "assistant", "content": turn.text, "tokens": len(turn.completion_tokens_T)}
        if answer.thinking:
            message["thinking"] = answer.thinking
        return message | ({"truncated": True} if turn.truncated else {})

    @cached_property
    def _opening(self) -> tuple[str, str]:
        """The template's text before and after the first user message."""
        return self._around(self.template.first_prompt([{"role": "user", "content": MARKER}]))

    @cached_property
    def _joining(self) -> tuple[str, str]:
        """Its text around each later message: from the end of the last answer to the header of the next."""
        return self._around(self.template.continuation(MARKER))

    def _around(self, ids: list[int]) -> tuple[str, str]:
        before, _, after = self._decode(ids).partition(MARKER)
        return before, after

    def _rendered(self, body: str) -> bool:
        """Whether a turn ends in it: then it holds several messages."""
        end = self._decode([self.template.turn_end]) if self.template.turn_end is not None else self._joining[0]
        return end in body

    def _decode(self, ids: Sequence[int]) -> str:
        return self.template.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


FOLDER = "conversations"


class Conversations:
    """Writes a run's `conversations/eval_000010.jsonl` and `conversations/step_000010.jsonl`."""

    def __init__(self, run: RunDirectory, template: ChatTemplate) -> None:
        self._folder = run.path / FOLDER
        self._transcriber = Transcriber(template)

    def save(self, batch: str, groups_P: Iterable[TrajectoryGroup]) -> None:
        """Write all trials of an evaluation, or `sampled_of` a training batch. Blocks. Raises DiskFault."""
        trials = [t for group in groups_P for t in (*group.trajectories_G, *group.lost)]
        self.write(batch, sampled_of(trials) if batch.startswith("step") else trials)

    def write(self, name: str, trajectories: Iterable[Trajectory]) -> Path:
        """Write one line for each trial: task, trial, reward, outcome, weights and all messages."""
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
    """For each task, the first trial with each distinct reward."""
    seen: set[tuple[str, float | None]] = set()
    for trajectory in trajectories:
        key = (trajectory.task_name, trajectory.reward)
        if key not in seen:
            seen.add(key)
            yield trajectory
