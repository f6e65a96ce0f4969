"""A conversation as training data: messages become the ids that the trainer would join, with a mask of the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harbortrainer.learning.datums import TrainingSequence, training_sequences
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.tools import Tool
from harbortrainer.rollout.shown import screen_in

FIRST_ROLES, LATER_ROLES = ("system", "user"), ("user", "tool")  # before the first answer, and between answers
ANSWER = "assistant"


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """A conversation. `task`: conversations of one task are on one side of the split. `source`: the file or directory.

    `special_strings`: in messages of a file, encoded as text.
    """

    name: str
    task: str
    source: str
    sequences_D: tuple[TrainingSequence, ...]  # one for each segment; every advantage is 1
    special_strings: int = 0

    @property
    def n_tokens(self) -> int:
        return sum(len(sequence.tokens_T) for sequence in self.sequences_D)

    @property
    def longest(self) -> int:
        """Tokens of its longest segment."""
        return max(len(sequence.tokens_T) for sequence in self.sequences_D)


def of_trajectory(trajectory: Trajectory, source: str, *, observed: bool = False) -> Demonstration:
    """Return a trial as it was sampled, token by token. `observed`: what the environment answered is a target too."""
    name = f"{source}/{trajectory.trial_name}"
    sequences = tuple(
        replace(s, trial_name=name, logprobs_T=np.zeros_like(s.logprobs_T))
        for s in training_sequences(trajectory, 1.0, observed=observed)
    )
    return Demonstration(name, trajectory.task_name, source, sequences)


def of_messages(
    messages: Sequence[Mapping[str, Any]],
    template: ChatTemplate,
    *,
    name: str,
    task: str | None,
    source: str,
    tools: Sequence[Tool] = (),
    observed: bool = False,
) -> Demonstration:
    """Return every answer of the assistant is trained on, and if `observed` what the environment answered.

    `task`: None = conversations with equal prompts are one task. `tools`: declared in the first prompt. Raises
    ValueError, one line, for messages that are no conversation; UserError: the template renders no tools.
    """
    turns = turns_of(messages, template, tools)
    trajectory = Trajectory(task or "", name, turns, 1.0, Outcome.COMPLETED)
    sequences = tuple(training_sequences(trajectory, 1.0, observed=observed))
    prompt = str(turns[0].new_tokens_T) if task is None else task
    last = max(place for place, message in enumerate(messages) if message["role"] == ANSWER)
    n_special = sum(template.special_strings(message["content"], message["role"]) for message in messages[: last + 1])
    return Demonstration(name, prompt, source, sequences, n_special)


def turns_of(
    messages: Sequence[Mapping[str, Any]], template: ChatTemplate, tools: Sequence[Tool] = ()
) -> tuple[Turn, ...]:
    """Get the turns that a policy with these answers would have had. Messages behind the last answer are left out."""
    if tools or any(isinstance(one, Mapping) and one.get("role") == "tool" for one in messages):
        _ = template.call_form  # raises UserError when the template renders no tools
    turns: list[Turn] = []
    waiting: list[dict[str, str]] = []
    for position, message in enumerate(messages):
        role, content = _parts(message, position)
        if role != ANSWER:
            if role not in (LATER_ROLES if turns else FIRST_ROLES):
                where = "before" if turns else "behind"
                raise ValueError(f"message {position + 1}: a {role} message must stand {where} the first answer")
            waiting.append({"role": role, "content": screen_in(content) if role == "user" else content})
            continue
        if not waiting:
            raise ValueError(f"message {position + 1}: an answer without a prompt")
        if turns:
            new = template.joined(turns[-1].completion_tokens_T, waiting, tools)
        else:
            new = template.opening(waiting, tools)
        answered = template.completion(content)
        turn = Turn(0, tuple(new.ids), tuple(answered), (0.0,) * len(answered), 0, text=content, roles_T=new.roles)
        turns.append(turn)
        waiting = []
    if not turns:
        raise ValueError("no message of the role assistant: nothing to train on")
    return tuple(turns)


def _parts(message: object, position: int) -> tuple[str, str]:
    """(role, content). Raises ValueError."""
    if not isinstance(message, Mapping):
        raise ValueError(f"message {position + 1}: must be an object with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in (*FIRST_ROLES, *LATER_ROLES, ANSWER):
        raise ValueError(f"message {position + 1}: role {role!r}; must be system, user, tool or assistant")
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"message {position + 1}: content must be text that is not empty")
    return role, content
