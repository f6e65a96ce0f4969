"""What a run is going to do, known before anything is spent; of a resumed one, what it did."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from src.budget.prices import Tariff, tariff_of
from src.config import Config
from src.config_changes import ConfigHistory, note, to_json
from src.course import Course, task_order
from src.curriculum.curriculum import open_curriculum
from src.display.display import Display
from src.rollout.task import Task
from src.run.checkpoints import CheckpointLog
from src.run.directory import RunDirectory, new_run_directory, open_run_directory
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
    tariff: Tariff

    @property
    def tasks(self) -> list[Task]:
        return [*self.train, *self.held_out]

    @property
    def finished(self) -> bool:
        """Whether the run that would go on has nothing left to do."""
        if self.earlier is None or self.earlier.pending_row.exists():
            return False
        checkpoint = CheckpointLog(self.earlier.checkpoints, 0).latest()
        return checkpoint is not None and checkpoint.step >= self.total_steps


def make_plan(config: Config) -> Plan:
    """Raises UserError: wrong tasks, no such run, other tasks than it was started with, a cap that nothing measures."""
    tariff = tariff_of(config)
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
    return Plan(config, train, held_out, sources, task_order(config, train).total_steps, earlier, tariff)


def start_directory(plan: Plan) -> RunDirectory:
    """The folder of a new run. Raises UserError."""
    config = plan.config
    label = config.wandb_name or Path(config.model_name).name
    split = split_record(plan.train, plan.held_out, config.allow_family_overlap)
    sources = sources_record(plan.sources, config.task_weights)
    files = {
        "config.json": to_json(config),
        "versions.json": _versions(),
        SPLIT_FILE: split,
        SOURCES_FILE: sources,
    }
    return new_run_directory(config.logs_dir, config.run_name, label, files)


def take_course(plan: Plan, run: RunDirectory, ledger: Ledger, display: Display) -> Course:
    """Settings by step; what was changed for this process is written down and told. Raises UserError."""
    history = ConfigHistory(run)
    changes = history.changes(plan.config)
    history.record(changes, ledger.steps_trained)
    for change in changes:
        display.say(note(change, ledger.steps_trained))
    curriculum = open_curriculum(plan.config, run.path, plan.train)
    if curriculum is not None:
        display.say(curriculum.summary)
    return Course(plan.train, history.configs(), curriculum)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("tinker", "harbor", "chz", "transformers", "numpy", "wandb", "docker")}
