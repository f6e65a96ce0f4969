"""The conversations of a fine-tuning run: read from files and from earlier runs' trials, chosen, split, described."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from harbortrainer.commands import PLAN_FILE
from harbortrainer.durable.files import read_json
from harbortrainer.errors import UserError
from harbortrainer.learning.datums import digest
from harbortrainer.learning.trajectory import Trajectory, TrialName
from harbortrainer.policy.chat_template import ChatTemplate, Renderer
from harbortrainer.run.directory import DATASET_FILE, RunDirectory, base_model, open_run_directory
from harbortrainer.run.trajectories import read_batch
from harbortrainer.sft.conversation import Demonstration, of_messages, of_trajectory
from harbortrainer.sft.rows import Row, messages_of, rows_of, tools_of
from harbortrainer.sft_config import SftConfig
from harbortrainer.tasks.close import WORDS, Known
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.tasks.split import SPLIT_FILE
from harbortrainer.tasks.task import Task

_PLACE, _REASONS = re.compile(r"^message \d+: "), 5  # of a reason; how many a line names
_TRAINING_BATCH, _EVALUATION_BATCH = re.compile(r"step_\d{6,}"), re.compile(r"eval_\d{6,}")


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Conversations. `notes`: lines for the user on what was left out."""

    train: list[Demonstration]
    held_out: list[Demonstration]
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return what a run keeps of its data; the same digest means the same ids, masks and split."""
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
    runs = [open_run_directory(path, "runs=") for path in config.runs]
    tasks = _held_out(config.held_out_dir) if config.held_out_dir else []
    forbidden = {task for run in runs for task in _held_out_tasks(run)} | {task.name for task in tasks}
    known = Known(tasks)
    notes: list[str] = []
    found: list[Demonstration] = []
    for file, name in _names(config.data):
        read = partial(
            _of_row,
            given=file,
            called=name,
            template=template,
            forbidden=forbidden,
            known=known,
            observed="observations" in config.train_on,
        )
        found += _of_data(file, config.min_reward, read, notes)
    found += _of_runs(config, runs, forbidden, template.renderer)
    if not found:
        raise UserError(_nothing(config))
    fitting = [one for one in found if one.longest <= config.context_limit]
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


def _of_data(
    given: str, min_reward: float, read: Callable[[Row], Demonstration], notes: list[str]
) -> list[Demonstration]:
    """The conversations of one source; a line says what was left out, and why. Raises UserError where all was."""
    kept: list[Demonstration] = []
    left: dict[str, list[str]] = {}
    for row in rows_of(given, min_reward):
        try:
            kept.append(read(row))
        except ValueError as error:
            left.setdefault(_PLACE.sub("", str(error)), []).append(f"{row.where}: {error}")
    if left and not kept:
        raise UserError(f"data={given}: {next(iter(left.values()))[0]}")
    if left:
        count = sum(map(len, left.values()))
        reasons = [f"{len(all_of)} {why} ({all_of[0].partition(': ')[0]})" for why, all_of in left.items()]
        reasons = [*reasons[:_REASONS], *([f"{len(reasons) - _REASONS} other reasons"] if reasons[_REASONS:] else [])]
        notes.append(f"{given}: {count} of {count + len(kept)} conversations are left out: {', '.join(reasons)}")
    return kept


def _of_row(
    row: Row, *, given: str, called: str, template: ChatTemplate, forbidden: set[str], known: Known, observed: bool
) -> Demonstration:
    """Raises ValueError."""
    record = row.read()
    task = str(record.get("task") or "") or None
    if task in forbidden:
        raise ValueError("of a task that is held out")
    name = f"{called}:{row.where.partition(' ')[2]}"
    tools, messages = tools_of(record), messages_of(record, template)
    found = of_messages(messages, template, name=name, task=task, source=given, tools=tools, observed=observed)
    if near := known.task_of("\n".join(message["content"] for message in messages)):
        raise ValueError(f"shares {WORDS} words in a row with the held-out task {near}")
    return found


def _of_runs(
    config: SftConfig, runs: Sequence[RunDirectory], forbidden: set[str], renderer: Renderer
) -> Iterator[Demonstration]:
    """The conversations of all runs. Raises UserError."""
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


def _held_out(sources: str) -> list[Task]:
    try:
        return load_sources(find_sources(sources))
    except UserError as error:
        raise UserError(f"held_out_dir={sources}: {str(error).removeprefix('tasks_dir: ')}") from None


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


def _at_most(conversations: Sequence[Demonstration], most: int, seed: int) -> list[Demonstration]:
    """At most `most` of each task, drawn by seed, in their order; 0 = all."""
    if not most:
        return list(conversations)
    of_task: defaultdict[str, list[Demonstration]] = defaultdict(list)
    for one in conversations:
        of_task[one.task].append(one)
    random = np.random.default_rng([seed, 1])
    kept = {id(group[i]) for group in of_task.values() for i in random.permutation(len(group))[:most]}
    return [one for one in conversations if id(one) in kept]


def _split(
    conversations: Sequence[Demonstration], share: float, seed: int
) -> tuple[list[Demonstration], list[Demonstration]]:
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
