"""Conversations of trials with reward and outcome: cut into messages, and written as JSON lines."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        """Get messages in order: role and content; answers also have thinking, tokens and whether they were truncated.

        A message of role "history" begins each new segment: there the history was rewritten. A trial whose venue has
        left its own messages in the trial's folder has those: system, user, tool and assistant apart.
        """
        if trajectory.trial_dir and (own := own_conversation(Path(trajectory.trial_dir))[0]):
            return own
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
        text, end = self._decode(turn.new_tokens_T), self.template.turn_end
        head, tail, ends = self._opening if opens else self._joining
        if not opens and end is not None and turn.new_tokens_T[:1] != (end,):  # it was sampled already
            head, ends = head.removeprefix(self._decode([end])), ends - 1
        body = text.removeprefix(head).removesuffix(tail)
        # More ends of turns than the template's: several messages. One that was shown as text is none.
        several = self._joining[0] in body if end is None else turn.new_tokens_T.count(end) > ends
        if text == head + body + tail and not several:
            return {"role": "user", "content": body}
        return {"role": "prompt", "content": text}

    def _answer(self, turn: Turn) -> Message:
        answer = self.template.answer(turn.completion_tokens_T)
        message: Message = {"role": "assistant", "content": turn.text, "tokens": len(turn.completion_tokens_T)}
        if answer.thinking:
            message["thinking"] = answer.thinking
        return message | ({"truncated": True} if turn.truncated else {})

    @cached_property
    def _opening(self) -> tuple[str, str, int]:
        """What the template writes before and after the first user message, and how many tokens there end a turn."""
        return self._around(self.template.first_prompt([{"role": "user", "content": MARKER}]))

    @cached_property
    def _joining(self) -> tuple[str, str, int]:
        """The same of each later message: from the end of the last answer to the header of the next."""
        return self._around(self.template.continuation(MARKER))

    def _around(self, ids: list[int]) -> tuple[str, str, int]:
        head, _, tail = self._decode(ids).partition(MARKER)
        return head, tail, ids.count(self.template.turn_end) if self.template.turn_end is not None else 0

    def _decode(self, ids: Sequence[int]) -> str:
        return self.template.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def own_conversation(folder: Path) -> tuple[list[Message], list[dict[str, Any]]]:
    """Return messages that a venue has left in a trial's folder, and the tools that the policy's first prompt declares.

    Each message has role and content; answers also `calls` (name, arguments), a tool's failed result `error`. Tools are
    in OpenAI's form. Both are empty without the file, or when it is damaged. Blocks.
    """
    try:
        found = json.loads((folder / OWN_FILE).read_bytes())
        messages = [{"role": "system", "content": found["system"]}, *map(_own_message, found["shown"])]
        return messages, list(found["tools"])
    except DAMAGED:
        return [], []


def _own_message(message: Mapping[str, Any]) -> Message:
    shown: Message = {"role": message["role"], "content": message.get("content") or ""}
    if calls := message.get("tool_calls"):
        shown["calls"] = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    if message["role"] == "tool":
        shown |= {"to": message["requestor"]} if message.get("requestor") == "user" else {}
        shown |= {"error": True} if message.get("error") else {}
    return shown


DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # reading a file of a trial
FOLDER = "conversations"
OWN_FILE = "conversation.json"  # in a trial's folder


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
    """Return a trial as JSON values. `tools`: declared to the policy, in OpenAI's form; left out where it has none."""
    tools = own_conversation(Path(trajectory.trial_dir))[1] if trajectory.trial_dir else []
    return {
        "task": trajectory.task_name,
        "trial": trajectory.trial_name,
        "reward": trajectory.reward,
        "outcome": trajectory.outcome.value,
        "detail": trajectory.detail,
        "weights_version": trajectory.turns[0].weights_version if trajectory.turns else None,
        **({"shaping": trajectory.shaping} if trajectory.shaping else {}),
        **({"tools": tools} if tools else {}),
        "messages": transcriber.conversation(trajectory),
    }


def sampled_of(trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Yield for each task the first trial with each distinct reward."""
    seen: set[tuple[str, float | None]] = set()
    for trajectory in trajectories:
        key = (trajectory.task_name, trajectory.reward)
        if key not in seen:
            seen.add(key)
            yield trajectory
