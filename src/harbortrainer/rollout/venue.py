"""The seam between a run and the places of its trials: a venue, and the room that a run has in it."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

import numpy as np

from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.learning.treatment import FAULTS
from harbortrainer.other_models.users import Users
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.sampler import PolicySampler, Sampler
from harbortrainer.policy.tools import Tool
from harbortrainer.rollout.gates import UNOBSERVED, Gates, ObservedTrial, TrialObserver, n_containers
from harbortrainer.tasks.identity import Identity
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import venue, wrong_answer

STEPS_AHEAD = 4  # whose task images are made before the steps begin
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One trial of one task. `name`: of its directory; unique among running trials."""

    name: str
    task: Task
    trials_dir: Path
    temperature: float
    seed: int
    attempt: int = 1
    mode: Literal["train", "eval"] = "train"
    weights: Sampler | None = None  # None = those published last


class TrialCancelled(asyncio.CancelledError):
    """The end of a trial. `turns`: sampled before the cancellation, and paid for; `stats`: tokens of other models,
    paid for too.
    """

    def __init__(self, turns: tuple[Turn, ...], stats: Mapping[str, float] = MappingProxyType({})) -> None:
        super().__init__()
        self.turns, self.stats = turns, dict(stats)


@dataclass(frozen=True, slots=True)
class RunParts:
    """The objects that all trials of a run share, at every venue."""

    config: Config
    sampler: PolicySampler
    template: ChatTemplate
    run_id: str
    gates: Gates
    observer: TrialObserver = UNOBSERVED
    users: Users | None = None  # what simulates users; None = the tasks' own scripts


@contextlib.contextmanager
def conversing[C: Conversation](
    kind: type[C], request: TrialRequest, run: RunParts, tools: Sequence[Tool] = ()
) -> Iterator[C]:
    """Get trial's conversation with the policy, within the run's limits. Raises UserError: no template for the `tools`.

    It samples the weights of its request, else those published last.
    """
    yield kind(
        request.weights or run.sampler.of_trial(request.task.ref),
        run.template,
        max_tokens=run.config.max_tokens,
        temperature=request.temperature,
        context_limit=run.config.context_limit,
        seed=request.seed,
        listener=ObservedTrial(request.name, run.observer),
        tools=tools,
    )


class Host(Protocol):
    """Runs trials. `name`: in the ledger, "" = the machine of the run.

    `outages`: how many its service has had; a trial during which one began was hit.
    """

    name: str = ""

    @property
    def outages(self) -> int:
        return 0

    async def ready(self) -> None:
        """Return when a trial can start. Raises EnvironmentFault when the service stays away."""

    async def suspect(self) -> None:
        """Call it after a fault of a trial: finds out whether the service is away."""

    async def run(self, request: TrialRequest) -> Trajectory:
        """Run one trial to its grade. A fault is the trajectory's outcome, never a reward. Raises TrialCancelled."""
        ...


class Room(Protocol):
    """A venue in use by one run. `agent`: acts in its trials, "" = the policy alone."""

    @property
    def agent(self) -> str:
        return ""

    @property
    def gate(self) -> AbstractAsyncContextManager[object]:
        """What a trial holds from before its start to its end."""
        ...

    def host(self) -> AbstractAsyncContextManager[Host]:
        """Return host of one trial, which the trial holds like the gate. Raises EnvironmentFault when all stay away."""
        ...

    def prepared(self, tasks: Sequence[Task], say: Say) -> AbstractAsyncContextManager[object]:
        """Make what the trials of all these tasks need; remove it at the end of the block."""
        return contextlib.nullcontext()

    def expect(self, tasks: Sequence[Task]) -> None:
        """Announce trials of these tasks, next and in this order: what they need may be made ahead."""

    def supplied(self, task: Task) -> AbstractAsyncContextManager[str]:
        """Wait for what the trials of a task need, and keep it within the block; yields "", or why it cannot be had.

        Raises EnvironmentFault when too many tasks lack it.
        """
        return contextlib.nullcontext("")

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of its hosts now, by name of docs/metrics.md."""
        return {}

    def close_batch(self, trials_dir: Path, n_trials: int) -> None:
        """Write the files of a whole batch over its trials. Blocks. Raises DiskFault."""

    async def aclose(self) -> None:
        """Close at the end of a run, before the block of `prepared` ends."""


class Venue(Protocol):
    """The place of trials. `place`: the path of a Source; other code gives it back unread."""

    @property
    def name(self) -> str: ...

    @property
    def packages(self) -> tuple[str, ...]:
        """Those whose versions shape its trials."""
        ...

    def find(self, name: str, /) -> tuple[str, str]:
        """Return the path and version of the source `VENUE:name`. Raises UserError."""
        ...

    def names(self, place: str) -> list[str]:
        """Return names of all tasks of a source. Raises UserError when the source cannot be read."""
        ...

    def load(self, place: str, excluded: Collection[str]) -> list[Task]:
        """Return its tasks, at will without `excluded`; `domain` "" becomes the source's name. Raises UserError."""
        ...

    def identify(self, task: Task) -> Identity:
        """Return the keys by which equal and related tasks are found."""
        ...

    def check(self, tasks: Sequence[Task], config: Config, template: ChatTemplate, n_trials: int) -> list[str]:
        """Return warnings for the user. Blocks. Raises UserError when `n_trials` of these tasks at once cannot run."""
        ...

    def room(self, run: RunParts) -> Room: ...


def checked_venues(
    tasks: Collection[Task], config: Config, template: ChatTemplate, given: Mapping[str, Venue]
) -> list[str]:
    """Return warnings of all venues about their tasks. `given`: replace those of the registry.

    Blocks. Raises UserError.
    """
    notes, n_trials = list[str](), n_containers(config)
    for name in dict.fromkeys(task.venue for task in tasks):
        one = given[name] if name in given else venue(name)
        warnings = one.check([task for task in tasks if task.venue == name], config, template, n_trials)
        if not isinstance(warnings, list):
            raise wrong_answer(name, "check", warnings, "a list of warnings, [] for none")
        notes += warnings
    return notes


def checked_trial(answer: object, request: TrialRequest) -> Trajectory:
    """Return what a venue answered, its reward as a float. Raises UserError for another trial, or no grade."""
    if not isinstance(answer, Trajectory):
        raise _wrong(request, f"a {type(answer).__name__}, no Trajectory")
    if (named := (answer.task_name, answer.trial_name)) != (request.task.name, request.name):
        raise _wrong(request, f"task and trial {named}, not {request.task.name}")
    reward, fault = answer.reward, answer.outcome in FAULTS
    if reward is None and fault and isinstance(answer.outcome, Outcome):
        return replace(answer, attempt=request.attempt)
    wrong = fault or not isinstance(answer.outcome, Outcome)
    if wrong or not isinstance(reward, int | float | np.number) or not math.isfinite(reward):
        raise _wrong(request, f"the reward {reward!r} and the outcome {answer.outcome!r}")
    return replace(answer, reward=float(reward), attempt=request.attempt)


def _wrong(request: TrialRequest, what: str) -> UserError:
    return UserError(
        f"tasks_dir={request.task.venue}: its venue answered {request.name} with {what}; return the Trajectory of the "
        "request, whose reward is a finite number, or None where the outcome is a fault"
    )
