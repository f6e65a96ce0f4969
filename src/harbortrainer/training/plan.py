"""The plan of a run, made before anything is spent: tasks, length, prices, and settings by step."""

import contextlib
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harbortrainer.budget.budget import Pricing, pricing_of
from harbortrainer.config import SETTINGS, Config
from harbortrainer.durable.disk import disk_errors
from harbortrainer.durable.files import make_folder, read_json, read_value, sync_folder
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.other_models.users import refuse_unused
from harbortrainer.run import agent_pack
from harbortrainer.run.checkpoints import CheckpointLog
from harbortrainer.run.config_changes import TRIAL_SETTINGS, SettingChange, to_save
from harbortrainer.run.directory import RunDirectory, new_run_directory, open_run_directory
from harbortrainer.run.ledger import Ledger, require_ledger
from harbortrainer.setting import changed
from harbortrainer.tasks import difficulty
from harbortrainer.tasks.close import close_note
from harbortrainer.tasks.sources import SOURCES_FILE, Source, check_weights, find_sources, load_sources, sources_record
from harbortrainer.tasks.split import SPLIT_FILE, check_split, families_note, split_record, split_tasks
from harbortrainer.tasks.task import FOLDERS, Task
from harbortrainer.tasks.venue import venue
from harbortrainer.text import counted
from harbortrainer.training.schedule import task_order


@dataclass(frozen=True, slots=True)
class RunPlan:
    config: Config
    train: list[Task]
    held_out: list[Task]
    sources: list[Source]
    total_steps: int
    earlier: RunDirectory | None  # of the run that is resumed
    pricing: Pricing
    notes: tuple[str, ...] = ()  # on what is not trained on

    @property
    def tasks(self) -> list[Task]:
        return [*self.train, *self.held_out]

    @property
    def length_note(self) -> tuple[str, ...]:
        """Lines on settings that the length and others leave without effect, and on trials that may come on top."""
        lines = [*self.notes, *self._idle]
        if self.held_out:
            lines += families_note(self.tasks, self.config.family)
        if self.total_steps < self.config.max_steps:
            lines.append(
                f"max_steps={self.config.max_steps}: n_epochs={self.config.n_epochs} ends the run after "
                f"{counted(self.total_steps, 'steps')}; leave n_epochs out, or raise it"
            )
        most = self.total_steps * self.config.num_substeps
        if self.config.warmup_steps > most:
            lines.append(
                f"warmup_steps={self.config.warmup_steps}: the run has {counted(most, 'optimizer steps')} and ends "
                f"before its rate is learning_rate={self.config.learning_rate:g}; lower warmup_steps"
            )
        if spare := self.config.oversample_max:
            more = spare * self.config.group_size
            lines.append(f"oversample_max={spare}: where groups are constant, a step runs up to {more} trials more")
        return tuple(lines)

    @property
    def _idle(self) -> Iterator[str]:
        """Lines on settings without effect beside the others."""
        names = [] if self.held_out else ["eval_group_size"]
        why = dict.fromkeys(names, "no task is held out; set eval_split or eval_tasks")
        if not self.config.enable_summarize:
            why["proactive_summarization_threshold"] = "set enable_summarize=true"
        if self.config.run_name and not self.config.wandb_project:
            why["wandb_name"] = "set wandb_project"
        if self.config.agent == SETTINGS["agent"].default and all(task.venue == FOLDERS for task in self.tasks):
            why["tool_format"] = "no trial has tools"
        for name, fix in why.items():
            for setting in changed(self.config, name):
                yield f"{setting}: without effect: {fix}, or leave it out"

    @property
    def finished(self) -> bool:
        """Whether the run to resume has nothing left to do."""
        if self.earlier is None or self.earlier.pending_row.exists():
            return False
        checkpoint = CheckpointLog(self.earlier.checkpoints).latest()
        return checkpoint is not None and checkpoint.step >= self.total_steps


def make_plan(config: Config) -> RunPlan:
    """Raises UserError: wrong tasks, no such run, tasks that differ from those of its start, a cap without a price."""
    pricing = pricing_of(config)
    sources = find_sources(config.tasks_dir)
    check_weights(config.task_weights, sources)
    family = "" if config.family is None and config.eval_tasks else config.family  # what is named is not drawn
    tasks = load_sources(sources, config.tasks_include, config.tasks_exclude, family)
    refuse_unused(config, tasks)
    if config.hosts != "none" and all(task.venue != FOLDERS for task in tasks):
        raise UserError(f"hosts={config.hosts}: conversations run in this process, wherever hosts are; leave it out")
    train, held_out = split_tasks(
        tasks,
        config.eval_split,
        config.eval_tasks,
        config.seed,
        config.allow_family_overlap,
    )
    earlier = None if config.resume is None else open_run_directory(config.resume)
    near = tuple(close_note(train, held_out)) if held_out else ()
    train, held_out, notes = _by_difficulty(config, train, held_out, earlier)
    if earlier is not None:
        require_ledger(earlier.ledger)
        check_split(earlier.path, train, held_out)
        if config.agents_dir is not None:
            agent_pack.check_pack(config, read_json(earlier.path / "versions.json"))
    total_steps = task_order(config, train).total_steps
    return RunPlan(
        config, train, held_out, sources, total_steps=total_steps, earlier=earlier, pricing=pricing, notes=notes + near
    )


def _by_difficulty(
    config: Config, train: list[Task], held_out: list[Task], earlier: RunDirectory | None
) -> tuple[list[Task], list[Task], tuple[str, ...]]:
    """Training tasks within the band, all held-out ones, a line; a resumed run reads its own copy of the file."""
    if config.difficulty is None:
        return train, held_out, ()
    file, band = difficulty.file_and_band(config.difficulty)
    measured = difficulty.read_measured(file if earlier is None else earlier.path / difficulty.FILE)
    kept, line = difficulty.within(difficulty.labelled(train, measured), measured, band)
    return kept, difficulty.labelled(held_out, measured), (line,)


def start_directory(plan: RunPlan, sampler: str = "") -> RunDirectory:
    """Create the folder of a new run. `sampler`: what computes its samples. Raises UserError."""
    config = plan.config
    label = config.wandb_name or Path(config.model_name).name
    known = {"sampler": sampler, **agent_pack.agent_versions(config)}
    files = {
        "config.json": to_save(config),
        "versions.json": installed_versions(plan.tasks) | {name: text for name, text in known.items() if text},
        SPLIT_FILE: split_record(plan.train, plan.held_out, config.allow_family_overlap),
        SOURCES_FILE: sources_record(plan.sources, config.task_weights),
    }
    if config.difficulty is not None:
        files[difficulty.FILE] = read_value(difficulty.file_and_band(config.difficulty)[0])
    return new_run_directory(config.logs_dir, config.run_name, label, files)


def set_aside(run: RunDirectory, changes: Sequence[SettingChange], ledger: Ledger) -> Iterator[str]:
    """Set aside finished trials of batches whose settings have changed, to run them again; a line for each batch.

    They are moved before the change is recorded: after a kill in between, the next process makes the same change.
    """
    changed = {change.field for change in changes} & {*TRIAL_SETTINGS}
    rows = read_lines(run.metrics)
    last = rows[-1]["global_step"] if rows else -1  # later evaluations are not over
    for folder in sorted((run.path / "trajectories").glob("eval_" + "[0-9]" * 6)) if changed else ():
        if (step := int(folder.name[-6:])) > last:
            yield from _moved(run, sorted(folder.glob("*.npz")), f"the evaluation after step {step}", changed)
    for folder in sorted((run.path / "trajectories").glob("step_" + "[0-9]" * 6)) if changed else ():
        files = [file for file in sorted(folder.glob("*.npz")) if not ledger.trained_on(TrialName.parse(file.stem))]
        yield from _moved(run, files, f"step {int(folder.name[-6:]) + 1}", changed)


def _moved(run: RunDirectory, files: Sequence[Path], what: str, fields: Collection[str]) -> Iterator[str]:
    if not files:
        return
    folder = files[0].parent
    aside = run.path / "trajectories" / f"{folder.name}_before_{time.strftime('%Y%m%d-%H%M%S')}"
    make_folder(aside)
    with disk_errors(aside):
        for file in files:
            file.rename(aside / file.name)
        sync_folder(aside)
        sync_folder(folder)
    names = ", ".join(file.stem for file in files[:3]) + (", ..." if len(files) > 3 else "")
    yield (
        f"{len(files)} finished trials of {what} are not used, they ran with other {', '.join(sorted(fields))}: "
        f"{names}; they are kept in {aside}, and new ones replace them"
    )


def sampler_change(effective: Path, sampler: str) -> tuple[str, ...]:
    """Get a line when an earlier process of this run sampled with something else. `effective`: its effective.json."""
    before = read_json(effective).get("server", {}).get("sampler", "") if effective.exists() else ""
    if not before or not sampler or before == sampler:
        return ()
    return (f"sampler: {sampler} from here on, {before} until now: a seed gives other samples than before",)


def installed_versions(tasks: Iterable[Task] = ()) -> dict[str, str]:
    """Return versions of the packages that shape a run, without those that are not installed (wandb is optional)."""
    found: dict[str, str] = {}
    of_venues = [name for place in dict.fromkeys(task.venue for task in tasks) for name in venue(place).packages]
    for name in ("tinker", "chz", "transformers", "numpy", "wandb", *of_venues):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = _version(name, tuple(sys.path))
    return found


@cache  # it parses all that the package says of itself
def _version(package: str, _path: tuple[str, ...]) -> str:
    return version(package)
