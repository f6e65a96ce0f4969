"""The conversations of a fine-tuning run: read from files and from earlier runs' trials, chosen, split, described."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from harbortrainer.commands import PLAN_FILE
from harbortrainer.config import SftConfig
from harbortrainer.durable.files import read_json
from harbortrainer.errors import UserError
from harbortrainer.learning.datums import digest
from harbortrainer.learning.trajectory import Trajectory, TrialName
from harbortrainer.policy.api.normal import tool
from harbortrainer.policy.chat_template import ChatTemplate, Renderer
from harbortrainer.policy.tools import Tool
from harbortrainer.run.directory import DATASET_FILE, RunDirectory, base_model, open_run_directory
from harbortrainer.run.trajectories import read_batch
from harbortrainer.sft.conversation import Conversation, of_messages, of_trajectory
from harbortrainer.tasks.split import SPLIT_FILE

_TRAINING_BATCH, _EVALUATION_BATCH = re.compile(r"step_\d{6,}"), re.compile(r"eval_\d{6,}")


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """`notes`: lines for the user on what was left out."""

    train: list[Conversation]
    held_out: list[Conversation]
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """What a run keeps of its data; the same digest means the same ids, masks and split."""
        both = (self.train, self.held_out)
        return {
            "digests": [digest([s for one in part for s in one.sequences_D]) for part in both],
            "conversations": [len(part) for part in both],
            "tokens": [sum(one.n_tokens for one in part) for part in both],
            "sources": dict(Counter(one.source for one in chain(*both))),
            "tasks": sorted({one.task for one in self.train if not one.task.startswith("(")}),
        }


def load_dataset(config: SftConfig, template: ChatTemplate) -> Dataset:
    """Read, choose and split the conversations. Raises UserError: field, value and line of what is wrong."""
    observed = "observations" in config.train_on
    found = [one for file, name in _names(config.data) for one in _of_file(file, name, template, observed)]
    found += _of_runs(config, template.renderer)
    if not found:
        raise UserError(_nothing(config))
    fitting = [one for one in found if one.longest <= config.context_limit]
    notes: list[str] = []
    if n_special := sum(one.special_strings for one in found):
        notes.append(
            f"{n_special} special strings of the model in messages are encoded as text, not as control tokens, in "
            f"{sum(one.special_strings > 0 for one in found)} of {len(found)} conversations"
        )
    if len(fitting) < len(found):
        notes.append(
            f"{len(found) - len(fitting)} of {len(found)} conversations are left out: longer than "
            f"context_limit={config.context_limit} (longest {max(one.longest for one in found)} tokens)"
        )
    if not fitting:
        raise UserError(f"context_limit={config.context_limit}: every conversation is longer; raise it")
    chosen = _at_most(fitting, config.max_per_task, config.seed)
    train, held_out = _split(chosen, config.eval_split, config.seed)
    return Dataset(train, held_out, tuple(notes))


def _nothing(config: SftConfig) -> str:
    if config.runs and not config.data:
        return (
            f"runs={','.join(config.runs)}: no trial of a training batch or an evaluation has a reward of "
            f"{config.min_reward:g} or more (held-out tasks aside); lower min_reward or name other runs"
        )
    return f"data={','.join(config.data)}: no conversation"


def _names(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each file with the name that its conversations have; the loss tells conversations apart by it."""
    taken: set[str] = set()
    for number, file in enumerate(files, 1):
        name = Path(file).name
        yield file, f"{number}/{name}" if name in taken else name
        taken.add(name)


def _of_file(file: str, called: str, template: ChatTemplate, observed: bool) -> Iterator[Conversation]:
    """One conversation a line: messages, and optionally the name of its task and the tools declared in it."""
    path = Path(file).expanduser()
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"data={file}: cannot be read ({error.strerror})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = _json(line)
            messages = record.get("messages") if isinstance(record, dict) else None
            if not isinstance(messages, list):
                raise ValueError('must be an object with a list "messages"')
            task, tools = record.get("task"), _tools(record)
            names = {"name": f"{called}:{number}", "task": str(task) if task else None, "source": file}
            yield of_messages(messages, template, **names, tools=tools, observed=observed)
        except ValueError as error:
            raise UserError(f"data={file}: line {number}: {error}") from None


def _json(line: bytes) -> Any:
    """Raises ValueError, which names the column."""
    try:
        return json.loads(line.decode())
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON object ({error.msg} at column {error.colno}); mend or delete the line") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start + 1}); convert the file") from None


def _tools(record: Mapping[str, Any]) -> list[Tool]:
    """The line's tools, in the form in which the model API declares them. Raises ValueError."""
    declared = record.get("tools") or []
    shaped = isinstance(declared, list) and all(isinstance(one, dict) for one in declared)
    functions: list[Any] = [one.get("function") for one in declared] if shaped else [None]
    if not all(isinstance(one, dict) for one in functions):
        raise ValueError('"tools" must be a list of objects {"type": "function", "function": {...}}')
    return [tool(one) for one in functions]


def _of_runs(config: SftConfig, renderer: Renderer) -> Iterator[Conversation]:
    """The conversations of all runs. Raises UserError."""
    runs = [open_run_directory(path, "runs=") for path in config.runs]
    forbidden = {task for run in runs for task in _held_out_tasks(run)}
    for run in runs:
        _check_renderer(run, renderer, config.model_name)
        for batch in _batches(run, forbidden):
            for one in _best(batch) if config.best_of_group else batch:
                if (one.reward or 0.0) >= config.min_reward:
                    yield of_trajectory(one, str(run.path), observed="observations" in config.train_on)


def _batches(run: RunDirectory, forbidden: set[str]) -> Iterator[list[Trajectory]]:
    """Graded trials, without those of forbidden tasks: of a run its training batches, of an evaluation all."""
    evaluation = "trials" in read_json(run.config)
    wanted = _EVALUATION_BATCH if evaluation else _TRAINING_BATCH
    for folder in sorted((run.path / "trajectories").glob("*")):
        if wanted.fullmatch(folder.name):
            yield [t for t in read_batch(folder).values() if t.trainable and t.task_name not in forbidden]


def _best(trials: Sequence[Trajectory]) -> list[Trajectory]:
    """Of each group the trials with its highest reward."""
    highest: defaultdict[Any, float] = defaultdict(lambda: -np.inf)
    for trial in trials:
        group = TrialName.parse(trial.trial_name).group
        highest[group] = max(highest[group], trial.reward or 0.0)
    return [t for t in trials if t.reward == highest[TrialName.parse(t.trial_name).group]]


def _held_out_tasks(run: RunDirectory) -> set[str]:
    """The tasks that a run, or the run of an evaluation's policy, holds out: nothing may be trained on them."""
    plan = read_json(run.path / PLAN_FILE) if (run.path / PLAN_FILE).is_file() else {}
    folders = [run.path, *(Path(one["run"]) for one in plan.get("subjects", ()) if one["run"])]
    files = [folder / SPLIT_FILE for folder in folders]
    return {name for file in files if file.is_file() for name in read_json(file, "held_out")["held_out"]}


def _check_renderer(run: RunDirectory, renderer: Renderer, model_name: str) -> None:
    """Raises UserError when the run's prompts were rendered otherwise, so that its ids mean something else here."""
    policy = read_json(run.effective).get("policy", {}) if run.effective.is_file() else {}
    theirs = Renderer(policy.get("renderer", ""), policy.get("thinking", ""))
    other = base_model(run)
    if policy and theirs != renderer:
        raise UserError(
            f"runs={run.path}: sampled with {theirs.name} and thinking {theirs.thinking}, this run has {renderer.name} "
            f"and thinking {renderer.thinking}; use a run of the same model_name, enable_thinking and tool_format"
        )
    if not policy and other != model_name:
        raise UserError(f"runs={run.path}: sampled with model_name={other}, this run has {model_name}; use the same")


def _at_most(conversations: Sequence[Conversation], most: int, seed: int) -> list[Conversation]:
    """At most `most` of each task, drawn by seed, in their order; 0 = all."""
    if not most:
        return list(conversations)
    of_task: defaultdict[str, list[Conversation]] = defaultdict(list)
    for one in conversations:
        of_task[one.task].append(one)
    random = np.random.default_rng([seed, 1])
    kept = {id(group[i]) for group in of_task.values() for i in random.permutation(len(group))[:most]}
    return [one for one in conversations if id(one) in kept]


def _split(
    conversations: Sequence[Conversation], share: float, seed: int
) -> tuple[list[Conversation], list[Conversation]]:
    """(train, held out): whole tasks. Raises UserError when no task is left to train on."""
    if not share:
        return list(conversations), []
    tasks = list(dict.fromkeys(one.task for one in conversations))
    count = max(1, round(share * len(tasks)))
    if count >= len(tasks):
        raise UserError(f"eval_split={share:g}: would hold out all {len(tasks)} tasks; lower it or give more data")
    drawn = {tasks[i] for i in np.random.default_rng([seed, 2]).permutation(len(tasks))[:count]}
    return [one for one in conversations if one.task not in drawn], [one for one in conversations if one.task in drawn]


def check_same(run: RunDirectory, dataset: Dataset) -> None:
    """Raises UserError when a resumed run's conversations are not those that it was started with."""
    before = read_json(run.path / DATASET_FILE, "digests", "conversations")
    if before["digests"] != dataset.record()["digests"]:
        raise UserError(
            f"resume={run.path}: its conversations have changed ({before['conversations']} of training and held out, "
            f"now {dataset.record()['conversations']}); put data and runs back, or start a new run"
        )
