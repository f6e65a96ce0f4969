"""Data from a rollout for learning: TrialName, Outcome, Turn, Trajectory, TrajectoryGroup. Frozen, no I/O.

Suffixes: `_T` tokens, `_G` members of a group, `_P` problems (groups of a batch), `_D` datums.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Literal

import numpy as np

CONSTANT_STD = 1e-6  # rewards of a group with a smaller standard deviation count as equal
# In `stats`: tokens of the models beside the policy, the trial's simulated user and its judge.
USER_TOKENS = ("user_prompt_tokens", "user_sampled_tokens")
JUDGE_TOKENS = ("judge_prompt_tokens", "judge_sampled_tokens")
# Keys of `shaping`: the judge's score; weights of categories by name; what the user's function adds.
JUDGE, TAXONOMY, REWARD = "judge", "taxonomy/", "reward"

BatchKind = Literal["step", "eval"]  # of trials: a training step's, or an evaluation's
_TRIAL_NAME = re.compile(r"([se])(\d{6,})-p(\d{2,})-g(\d{2,})(?:-a(\d+))?")


def batch_name(kind: BatchKind, step: int) -> str:
    """`step_000012`: the folder of a batch, and the stem of its files. Steps are counted from 0."""
    return f"{kind}_{step:06d}"


@dataclass(frozen=True, slots=True, order=True)
class TrialName:
    """A name, `s000012-p03-g01-a2`: batch (s = step, e = eval), problem, member of its group, attempt (the first has
    none).
    """

    kind: BatchKind
    step: int
    problem: int
    member: int
    attempt: int = 1

    @classmethod
    def parse(cls, text: str) -> "TrialName":
        """Raises ValueError when `text` is not the name of a trial."""
        if (found := _TRIAL_NAME.fullmatch(text)) is None:
            raise ValueError(f"{text} is not the name of a trial")
        letter, step, problem, member, attempt = found.groups()
        return cls("step" if letter == "s" else "eval", int(step), int(problem), int(member), int(attempt or 1))

    def __str__(self) -> str:
        retry = "" if self.attempt == 1 else f"-a{self.attempt}"
        return f"{self.group_name}-g{self.member:02d}{retry}"

    @property
    def first(self) -> "TrialName":
        """The first attempt at the same place in the batch."""
        return replace(self, attempt=1)

    @property
    def group(self) -> tuple[BatchKind, int, int]:
        """Equal for all trials of one group."""
        return self.kind, self.step, self.problem

    @property
    def group_name(self) -> str:
        """`s000012-p03`, the part of the name that all trials of one group share."""
        return f"{self.kind[0]}{self.step:06d}-p{self.problem:02d}"


class Outcome(StrEnum):
    """The end of a trial, exactly one for each; `learning/treatment.py` decides what happens with it."""

    COMPLETED = "completed"
    MAX_TURNS = "max_turns"
    CONTEXT_LENGTH = "context_length"
    AGENT_TIMEOUT = "agent_timeout"
    POLICY_ERROR = "policy_error"
    UNASKED = "unasked"  # its reward depends on something that the task does not ask for
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    VERIFIER_ERROR = "verifier_error"
    CANCELLED = "cancelled"


class Role(IntEnum):
    """The author of a token that was not sampled. A token with parts of several has the lowest."""

    TEMPLATE = 0  # headers and ends of messages, declared tools; also what is not known
    HARNESS = 1  # instructions, its own words, and in a first prompt everything said before
    ENVIRONMENT = 2  # in answer to an action
    USER = 3  # simulated


@dataclass(frozen=True, slots=True)
class Turn:
    """One sampled completion.

    Its prompt is all tokens (new and completed) of the segment's earlier turns, then `new_tokens_T`. Tokens are stored
    once, so the size of a trajectory is linear in its turns. A new segment starts where the history was rewritten
    (summarisation); its first turn's `new_tokens_T` is the prompt.
    """

    segment: int
    new_tokens_T: tuple[int, ...]
    completion_tokens_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]  # of completion_tokens_T, natural log, at temperature 1
    weights_version: int
    truncated: bool = False  # stopped by max_tokens, not by a stop token
    seconds: float = 0.0  # wall time of the sampling call
    text: str = ""  # the input of the agent's parser
    roles_T: bytes = b""  # a `Role` for each of new_tokens_T; empty = not known, of a run from before

    def __post_init__(self) -> None:
        if len(self.roles_T) not in (0, len(self.new_tokens_T)):
            raise ValueError(f"turn has {len(self.new_tokens_T)} new tokens but {len(self.roles_T)} roles")
        if len(self.completion_tokens_T) != len(self.logprobs_T):
            raise ValueError(
                f"turn has {len(self.completion_tokens_T)} sampled tokens but {len(self.logprobs_T)} logprobs"
            )


def without_segments(turns: Sequence[Turn], left_out: Collection[int]) -> list[Turn]:
    """Return the turns of all other segments."""
    return [turn for turn in turns if turn.segment not in left_out]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One trial as training data. `reward` is None exactly when the trial has no grade (a fault is never 0)."""

    task_name: str
    trial_name: str
    turns: tuple[Turn, ...]
    reward: float | None
    outcome: Outcome
    detail: str = ""  # one line: why, for outcomes that need it
    attempt: int = 1
    times: dict[str, float] = field(default_factory=dict)  # stage -> seconds
    stats: dict[str, float] = field(default_factory=dict)  # parse failures, own CPU seconds, ...
    trial_dir: str = ""
    # files and services that a reward above 0 came from, None = not known (`run/provenance.py`)
    depends: tuple[str, ...] | None = None
    side_segments: tuple[int, ...] = ()  # without loss: titles, summaries, what the policy asked itself
    # What a judge adds in training; {} = not judged, as in every evaluation. Only `learning/batch.py` reads it.
    shaping: dict[str, float] = field(default_factory=dict)

    @property
    def n_sampled_tokens(self) -> int:
        return sum(len(turn.completion_tokens_T) for turn in self.turns)

    @property
    def n_prompt_tokens(self) -> int:
        """Tokens of all prompts: each turn sends the whole history of its segment again."""
        total = 0
        history: dict[int, int] = {}  # segment -> tokens so far
        for turn in self.turns:
            prompt = history.get(turn.segment, 0) + len(turn.new_tokens_T)
            history[turn.segment] = prompt + len(turn.completion_tokens_T)
            total += prompt
        return total

    @property
    def n_unique_tokens(self) -> int:
        """Tokens of all segments, each counted once."""
        return sum(len(turn.new_tokens_T) + len(turn.completion_tokens_T) for turn in self.turns)

    @property
    def n_side_tokens(self) -> int:
        """Tokens of the side segments, each counted once."""
        side = [turn for turn in self.turns if turn.segment in self.side_segments]
        return sum(len(turn.new_tokens_T) + len(turn.completion_tokens_T) for turn in side)

    @property
    def own_turns(self) -> list[Turn]:
        """All but those of side segments."""
        return without_segments(self.turns, self.side_segments)

    @property
    def trainable(self) -> bool:
        return self.reward is not None and any(turn.completion_tokens_T for turn in self.own_turns)


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The trials of one task that are compared with each other, and those that were lost."""

    task_name: str
    trajectories_G: tuple[Trajectory, ...]  # all trainable
    lost: tuple[Trajectory, ...] = ()  # dropped after their retries: infrastructure, verifier, cancelled

    @property
    def rewards_G(self) -> tuple[float, ...]:
        return tuple(t.reward for t in self.trajectories_G if t.reward is not None)

    @property
    def constant(self) -> bool:
        """Whether its rewards are equal, so that no trial was better than another."""
        return is_constant(self.rewards_G)


def is_constant(rewards_G: Sequence[float]) -> bool:
    return len(rewards_G) < 2 or float(np.std(rewards_G)) < CONSTANT_STD


def group_trajectories(task_name: str, trajectories: Sequence[Trajectory]) -> TrajectoryGroup:
    """Split a task's trajectories into those that can be trained on and those that cannot."""
    return TrajectoryGroup(
        task_name,
        tuple(t for t in trajectories if t.trainable),
        tuple(t for t in trajectories if not t.trainable),
    )
