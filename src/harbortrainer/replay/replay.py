"""The command `replay`: rebuilds each step's datums from the files of a run, and compares them with the ledger."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from harbortrainer.cli.output import give_json
from harbortrainer.config import Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.learning.batch import TrainingBatch, assemble
from harbortrainer.learning.datums import TrainingSequence, digest
from harbortrainer.learning.minibatches import optimizer_batches
from harbortrainer.learning.pace import GroupSlot
from harbortrainer.learning.trajectory import Trajectory, TrajectoryGroup, TrialName, group_trajectories
from harbortrainer.replay.arguments import ReplayArgs
from harbortrainer.run.config_changes import ConfigHistory
from harbortrainer.run.directory import RunDirectory, open_run_directory
from harbortrainer.run.ledger import updates_that_count
from harbortrainer.run.trajectories import read_batch
from harbortrainer.text import counted
from harbortrainer.training.schedule import SettingsByStep


class Journal:
    """The recorded trials and settings of a run; steps count from 0. Raises UserError when a file is damaged."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._schedule = SettingsByStep((), ConfigHistory(run, Config).configs())
        ledger = read_lines(run.ledger, checked=True)
        composed = {record["step"]: record["groups"] for record in ledger if record["event"] == "composed"}
        self._composed = {step: [GroupSlot(batch, place) for batch, place in composed[step]] for step in composed}
        self.records = updates_that_count(ledger)

    def config(self, step: int) -> Config:
        return self._schedule.at(step).config

    def groups(self, step: int) -> list[TrajectoryGroup]:
        """Return the batch as the trainer had it, without slots in which no trial ended."""
        stored = self._stored(step)
        slots: dict[TrialName, Trajectory] = {}
        for trajectory in sorted(stored, key=lambda t: t.reward is None):  # a graded trial takes the slot first
            slots.setdefault(TrialName.parse(trajectory.trial_name).first, trajectory)
        members_P = [
            [slots[name] for name in names] for _, names in groupby(sorted(slots), key=lambda name: name.group)
        ]
        return [group_trajectories(members[0].task_name, members) for members in members_P]

    def _stored(self, step: int) -> list[Trajectory]:
        if step not in self._composed:
            return [*read_batch(self._run.trajectories("step", step)).values()]
        found: list[Trajectory] = []
        for place in self._composed[step]:
            found += read_batch(self._run.trajectories("step", place.batch), f"{place}-*").values()
        return found


Parts = Sequence[Sequence[TrainingSequence]]  # of each optimizer step, before a KL penalty


def rebuild(
    groups_P: Sequence[TrajectoryGroup], config: Config, step: int, too_far: Collection[str] = ()
) -> tuple[TrainingBatch, Parts]:
    """Return the batch as `config` makes it. `too_far`: trials that the run's own update left out."""
    batch = assemble(groups_P, config)
    return batch, optimizer_batches(batch.sequences_D, config, step, too_far)


def same_as_recorded(batch: TrainingBatch, parts: Parts, record: Mapping[str, Any]) -> str:
    """Return what differs from the ledger's record of the step; "" = nothing."""
    trials = list(dict.fromkeys(s.trial_name for s in batch.sequences_D))
    if lost := [name for name in record["trials"] if name not in trials]:
        return f"{len(lost)} of {len(record['trials'])} trained trials are missing or not trained on ({lost[0]} …)"
    if added := [name for name in trials if name not in record["trials"]]:
        return f"{len(added)} trials were not trained on by the run ({added[0]} …)"
    if batch.advantages != record["advantages"]:
        return "other advantages"
    if record["digest"] != digest(batch.sequences_D):
        return "other tokens or logprobs, in files changed since"
    updates = [list(dict.fromkeys(s.trial_name for s in part)) for part in parts]
    return "other minibatches" if record.get("updates", updates) != updates else ""


@dataclass(frozen=True, slots=True)
class StepReport:
    """A rebuilt step: `step` as in metrics.jsonl; `difference`: from what the run trained on, "" = in no bit."""

    step: int
    trials: int
    datums: int
    optimizer_steps: int
    difference: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Steps that were rebuilt. `notes`: lines on what could not be compared."""

    run_dir: str
    steps: Sequence[StepReport]
    notes: Sequence[str]

    @property
    def rebuilt(self) -> bool:
        return not any(step.difference for step in self.steps)

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"rebuilt": self.rebuilt}, indent=2)


async def replayed(args: ReplayArgs) -> int:
    """Exit status: 0 done, 1 the run's own datums could not be rebuilt."""
    report = replay(open_run_directory(args.run_dir, field=""), args)
    if not give_json(report.to_json(), args.json):
        show(report, Console(highlight=False))
    return 0 if report.rebuilt else 1


def replay(run: RunDirectory, args: ReplayArgs) -> ReplayReport:
    """Raises UserError when nothing was trained on, no step has the number, or a file is damaged."""
    journal = Journal(run)
    steps = _steps(journal, run, args)
    return ReplayReport(str(run.path), [_step(journal, step) for step in steps], [*_notes(journal, steps)])


def _steps(journal: Journal, run: RunDirectory, args: ReplayArgs) -> list[int]:
    if not journal.records:
        raise UserError(f"{run.path}: no step was trained on yet; nothing can be replayed")
    wanted = [step - 1 for step in args.steps]
    for step in wanted:
        if step not in journal.records:
            raise UserError(f"steps={step + 1}: not trained on; choose from 1 to {max(journal.records) + 1}")
    return wanted or list(journal.records)


def _step(journal: Journal, step: int) -> StepReport:
    record = journal.records[step]
    batch, parts = rebuild(journal.groups(step), journal.config(step), step, record.get("too_far", ()))
    trials = len({sequence.trial_name for sequence in batch.sequences_D})
    return StepReport(step + 1, trials, len(batch.sequences_D), len(parts), same_as_recorded(batch, parts, record))


def _notes(journal: Journal, steps: Sequence[int]) -> Iterator[str]:
    if any(journal.config(step).kl_penalty_coef for step in steps):
        yield "the run's advantages were sent with its KL penalty; they are compared without it"


def show(report: ReplayReport, console: Console) -> None:
    """Print a row a step, then notes."""
    table = Table(show_edge=False, pad_edge=False)
    for name in ("step", "trials", "datums", "updates"):
        table.add_column(name, justify="right")
    table.add_column("against the ledger", overflow="fold")
    for step in report.steps:
        counts = map(str, (step.step, step.trials, step.datums, step.optimizer_steps))
        table.add_row(*counts, step.difference and f"not what the run trained on: {step.difference}")
    console.print(table)
    if report.rebuilt:
        console.print(f"the run's datums: rebuilt bit by bit, {counted(len(report.steps), 'steps')} as in the ledger")
    for note in report.notes:
        console.print(note, markup=False, soft_wrap=True)
