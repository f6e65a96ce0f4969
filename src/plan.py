"""What a run is going to do, known before anything is spent; of a resumed one, what it did."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from src.budget.prices import Pricing, pricing_of
from src.config import Config
from src.config_changes import TRIAL_SETTINGS, Change, ConfigHistory, note, to_json
from src.course import Course, task_order
from src.curriculum.curriculum import open_curriculum
from src.disk import telling
from src.display.display import Display
from src.rollout.task import Task
from src.run.checkpoints import CheckpointLog
from src.run.directory import RunDirectory, new_run_directory, open_run_directory
from src.run.files import make_folder, sync_folder
from src.run.jsonl import read_lines
from src.run.ledger import Ledger
from src.tasks.sources import SOURCES_FILE, Source, check_weights, find_sources, load_sources, sources_record
from src.tasks.split import SPLIT_FILE, save_split, split_record, split_tasks


@dataclass(frozen=True, slots=True)
class Plan:
    config: Config
    train: list[Task]
    held_out: list[Task]
    sources: list[Source]
    total_steps: int
    earlier: RunDirectory | None  # of the run that goes on
    pricing: Pricing

    @property
    def tasks(self) -> list[Task]:
        return [*self.train, *self.held_out]

    @property
    def length_note(self) -> tuple[str, ...]:
        """A line where two settings of the length differ."""
        if self.total_steps >= self.config.max_steps:
            return ()
        return (
            f"max_steps={self.config.max_steps}: n_epochs={self.config.n_epochs} ends the run after "
            f"{self.total_steps} steps; leave n_epochs out, or raise it",
        )

    @property
    def finished(self) -> bool:
        """Whether the run that would go on has nothing left to do."""
        if self.earlier is None or self.earlier.pending_row.exists():
            return False
        checkpoint = CheckpointLog(self.earlier.checkpoints, 0).latest()
        return checkpoint is not None and checkpoint.step >= self.total_steps


def make_plan(config: Config) -> Plan:
    """Raises UserError: wrong tasks, no such run, other tasks than it was started with, a cap that nothing measures."""
    pricing = pricing_of(config)
    sources = find_sources(config.tasks_dir)
    check_weights(config.task_weights, sources)
    train, held_out = split_tasks(
        load_sources(sources, config.tasks_include, config.tasks_exclude),
        config.eval_split,
        config.eval_tasks,
        config.seed,
        config.allow_family_overlap,
    )
    earlier = None if config.resume is None else open_run_directory(config.resume)
    if earlier is not None:
        save_split(earlier.path, train, held_out, config.allow_family_overlap, resumed=True)
    return Plan(config, train, held_out, sources, task_order(config, train).total_steps, earlier, pricing)


def start_directory(plan: Plan) -> RunDirectory:
    """The folder of a new run. Raises UserError."""
    config = plan.config
    label = config.wandb_name or Path(config.model_name).name
    split = split_record(plan.train, plan.held_out, config.allow_family_overlap)
    sources = sources_record(plan.sources, config.task_weights)
    files = {
        "config.json": to_json(config),
        "versions.json": installed_versions(),
        SPLIT_FILE: split,
        SOURCES_FILE: sources,
    }
    return new_run_directory(config.logs_dir, config.run_name, label, files)


def take_course(plan: Plan, run: RunDirectory, ledger: Ledger, display: Display) -> Course:
    """Settings by step; what was changed for this process is written down and told. Raises UserError."""
    history = ConfigHistory(run)
    changes = history.changes(plan.config)
    for line in _set_aside(run, changes, ledger.steps_trained):
        display.say(line)
    history.record(changes, ledger.steps_trained)
    for change in changes:
        display.say(note(change, ledger.steps_trained))
    curriculum = open_curriculum(plan.config, run.path, plan.train)
    if curriculum is not None:
        display.say(curriculum.summary)
    return Course(plan.train, history.configs(), curriculum)


def _set_aside(run: RunDirectory, changes: Sequence[Change], step: int) -> Iterator[str]:
    """Take finished trials out of the batches that changed settings hold for, to run them again; a line for each batch.

    They are moved before the change is recorded: a process that is killed in between makes the change again.
    """
    changed = {change.field for change in changes} & {*TRIAL_SETTINGS, "eval_temperature"}
    rows = read_lines(run.metrics)
    evaluated = bool(rows) and rows[-1]["global_step"] >= step
    for kind, done, fields in (("step", False, changed - {"eval_temperature"}), ("eval", evaluated, changed)):
        files = sorted(run.trajectories(kind, step).glob("*.npz"))
        if done or not fields or not files:
            continue
        aside = run.path / "trajectories" / f"{kind}_{step:06d}_before_{time.strftime('%Y%m%d-%H%M%S')}"
        make_folder(aside)
        with telling(aside):
            for file in files:
                file.rename(aside / file.name)
            sync_folder(aside)
            sync_folder(files[0].parent)
        names = ", ".join(file.stem for file in files[:3]) + (", ..." if len(files) > 3 else "")
        what = f"step {step + 1}" if kind == "step" else f"the evaluation after step {step}"
        yield (
            f"{len(files)} finished trials of {what} are not used, they ran with other {', '.join(sorted(fields))}: "
            f"{names}; they are kept in {aside}, and new ones take their places"
        )


def installed_versions() -> dict[str, str]:
    """Of the packages that shape a run; one that is not installed (wandb is optional) is left out."""
    found: dict[str, str] = {}
    for name in ("tinker", "harbor", "chz", "transformers", "numpy", "wandb", "docker"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
