"""The command `replay`: rebuilds each step's datums from the files of a run, under its settings and under others."""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harbortrainer.backend.terms import loss_settings
from harbortrainer.cli.output import give_json
from harbortrainer.config import Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.learning.batch import TrainingBatch, assemble
from harbortrainer.learning.datums import TrainingSequence, digest
from harbortrainer.learning.minibatches import optimizer_batches
from harbortrainer.learning.pace import GroupSlot
from harbortrainer.learning.trajectory import Trajectory, TrajectoryGroup, TrialName, group_trajectories
from harbortrainer.replay.arguments import SETTINGS, ReplayArgs, changed
from harbortrainer.run.config_changes import ConfigHistory
from harbortrainer.run.directory import RunDirectory, open_run_directory
from harbortrainer.run.ledger import updates_that_count
from harbortrainer.run.trajectories import read_batch
from harbortrainer.setting import shown
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
        rows = read_lines(run.metrics)
        # largest |trainer's - sampler's logprob| of each step's first update, in nats; None = not logged
        self.gaps = {row["global_step"] - 1: row.get("logprobs/max_abs_difference") for row in rows}

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


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuilt step. `parts`: the sequences of each optimizer step, before a KL penalty."""

    batch: TrainingBatch
    parts: Sequence[Sequence[TrainingSequence]]

    @property
    def digest(self) -> str:
        """The ledger's digest: of the batch before it is normalised and cut into minibatches."""
        return digest(self.batch.sequences_D)


def rebuild(groups_P: Sequence[TrajectoryGroup], config: Config, step: int, too_far: Collection[str] = ()) -> Rebuilt:
    """Return the batch as `config` makes it. `too_far`: trials that the run's own update left out."""
    batch = assemble(groups_P, config)
    return Rebuilt(batch, optimizer_batches(batch.sequences_D, config, step, too_far))


def numbers(rebuilt: Rebuilt, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return numbers of a step. `weight`: sum of |advantage| over all sampled tokens as sent, after `loss_norm`."""
    advantages = rebuilt.batch.advantages
    trials = {s.trial_name for s in rebuilt.batch.sequences_D}
    signal = [any(advantages.get(t.trial_name) for t in g.trajectories_G if t.trial_name in trials) for g in groups_P]
    return {
        "groups": float(len(groups_P)),
        "groups_with_signal": float(sum(signal)),
        "trials": float(len(trials)),
        "tokens": float(sum(int(s.mask_T.sum()) for s in rebuilt.batch.sequences_D if s.acts)),
        "mean_abs_advantage": sum(abs(advantages.get(name, 0.0)) for name in trials) / len(trials) if trials else 0.0,
        "weight": float(sum(abs(s.advantages_T).sum(dtype=float) for part in rebuilt.parts for s in part)),
        "optimizer_steps": float(len(rebuilt.parts)),
        "datums": float(len(rebuilt.batch.sequences_D)),
    }


def changed_datums(one: Rebuilt, other: Rebuilt) -> int:
    """Return how many datums only one of them has, or differ in any bit as they are sent."""
    a, b = _datums(one), _datums(other)
    return sum(a.get(key) != b.get(key) for key in a.keys() | b.keys())


def clipped(config: Config, gap: float | None, run_substeps: int) -> float | None:
    """Return the share of the step's tokens whose probability ratio lies outside the thresholds; None = unknown.

    `gap`: largest |log ratio| before the batch's first optimizer step. No run stores the trainer's logprob of each
    token, so the share is known only where all ratios lie within the thresholds: it is 0.
    """
    settings = loss_settings(config)
    if settings is None:
        return None if config.loss_fn == "dppo" else 0.0
    if gap is None or run_substeps > 1 or config.num_substeps > 1:
        return None
    inside = math.exp(gap) <= settings["clip_high_threshold"] and math.exp(-gap) >= settings["clip_low_threshold"]
    return 0.0 if inside else None


def same_as_recorded(rebuilt: Rebuilt, record: Mapping[str, Any]) -> str:
    """Return what differs from the ledger's record of the step; "" = nothing."""
    trials = list(dict.fromkeys(s.trial_name for s in rebuilt.batch.sequences_D))
    if lost := [name for name in record["trials"] if name not in trials]:
        return f"{len(lost)} of {len(record['trials'])} trained trials are missing or not trained on ({lost[0]} …)"
    if added := [name for name in trials if name not in record["trials"]]:
        return f"{len(added)} trials were not trained on by the run ({added[0]} …)"
    if rebuilt.batch.advantages != record["advantages"]:
        return "other advantages"
    if record.get("digest", rebuilt.digest) != rebuilt.digest:  # older ledgers have none
        return "other tokens or logprobs, in files changed since"
    updates = [list(dict.fromkeys(s.trial_name for s in part)) for part in rebuilt.parts]
    return "other minibatches" if record.get("updates", updates) != updates else ""


def _datums(rebuilt: Rebuilt) -> dict[tuple[str, int], bytes]:
    seen: Counter[str] = Counter()
    datums: dict[tuple[str, int], bytes] = {}
    for sequence in (s for part in rebuilt.parts for s in part):
        arrays = [sequence.tokens_T, sequence.mask_T, sequence.logprobs_T, sequence.advantages_T]
        arrays += [] if sequence.observed_T is None else [sequence.observed_T]
        datums[sequence.trial_name, seen[sequence.trial_name]] = b"".join(array.tobytes() for array in arrays)
        seen[sequence.trial_name] += 1
    return datums


COLUMNS = {
    "groups_with_signal": "groups with signal",
    "trials": "trials",
    "tokens": "tokens",
    "mean_abs_advantage": "mean |A|",
    "weight": "weights",
    "optimizer_steps": "updates",
}
MEANS = ("mean_abs_advantage",)  # over trials; the other numbers are summed


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step's report: `step` as in metrics.jsonl. `difference`: how the rebuilt datums differ from the run's own, ""
    = in no bit.
    """

    step: int
    run: dict[str, float]
    replay: dict[str, float]
    datums_changed: int
    clipped: float | None
    difference: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """A replay's report. `settings`: field -> value of the run (at its first replayed step), value of the replay."""

    run_dir: str
    settings: dict[str, tuple[Any, Any]]
    steps: Sequence[StepReport]
    notes: Sequence[str]

    @property
    def rebuilt(self) -> bool:
        return not any(step.difference for step in self.steps)

    def to_json(self) -> str:
        changes = {name: {"run": before, "replay": now} for name, (before, now) in self.settings.items()}
        return json.dumps(asdict(self) | {"settings": changes, "rebuilt": self.rebuilt}, indent=2)


async def replayed(args: ReplayArgs) -> int:
    """Exit status: 0 done, 1 the run's own datums could not be rebuilt."""
    report = replay(open_run_directory(args.run_dir, field=""), args)
    if not give_json(report.to_json(), args.json):
        show(report, Console(highlight=False))
    return 0 if report.rebuilt else 1


def replay(run: RunDirectory, args: ReplayArgs) -> ReplayReport:
    """Raises UserError when nothing was trained on, a file is damaged, or a setting cannot be replayed."""
    journal = Journal(run)
    steps = _steps(journal, run, args)
    before, now = journal.config(steps[0]), changed(journal.config(steps[0]), args)
    settings = {
        name: (getattr(before, name), getattr(now, name))
        for name in SETTINGS
        if getattr(before, name) != getattr(now, name)
    }
    reports = [_step(journal, step, args) for step in steps]
    undigested = sum("digest" not in journal.records[step] for step in steps)
    return ReplayReport(str(run.path), settings, reports, [*_notes(now, before, reports, undigested)])


def _steps(journal: Journal, run: RunDirectory, args: ReplayArgs) -> list[int]:
    if not journal.records:
        raise UserError(f"{run.path}: no step was trained on yet; nothing can be replayed")
    wanted = [step - 1 for step in args.steps]
    for step in wanted:
        if step not in journal.records:
            raise UserError(f"steps={step + 1}: not trained on; choose from 1 to {max(journal.records) + 1}")
    return wanted or list(journal.records)


def _step(journal: Journal, step: int, args: ReplayArgs) -> StepReport:
    groups_P = journal.groups(step)
    config = journal.config(step)
    now = changed(config, args)
    too_far = journal.records[step].get("too_far", ())
    before, after = (rebuild(groups_P, one, step, too_far) for one in (config, now))
    return StepReport(
        step + 1,
        numbers(before, groups_P),
        numbers(after, groups_P),
        changed_datums(before, after),
        clipped(now, journal.gaps.get(step), config.num_substeps),
        same_as_recorded(before, journal.records[step]),
    )


def _notes(now: Config, before: Config, steps: Sequence[StepReport], undigested: int) -> Iterator[str]:
    if before.kl_penalty_coef:
        yield "the run's advantages were sent with its KL penalty; all numbers here are without it"
    if any(step.clipped is None for step in steps):
        yield (
            f"clipped: unknown where {now.loss_fn} saw a ratio beyond the thresholds, and after the first step of a "
            "batch: no run stores the trainer's logprob of each token"
        )
    if now != before:
        yield "the trials are the recorded ones: under these settings later steps would have other weights and trials"
    if undigested:
        lacking = counted(undigested, "steps")
        yield f"{lacking} of the ledger without a digest: only trials, advantages and minibatches were compared"


def show(report: ReplayReport, console: Console) -> None:
    """Print a row a step, `a → b` where a number changes, then the totals and notes."""
    changes = [f"{name}={shown(now)}, was {shown(before)}" for name, (before, now) in report.settings.items()]

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    say(f"{report.run_dir}: {'; '.join(changes) or 'its own settings'}")
    console.print(_table(report))
    if report.rebuilt:
        say(f"the run's own datums: rebuilt bit by bit, {counted(len(report.steps), 'steps')} as in the ledger")
    for step in report.steps:
        if step.difference:
            say(f"step {step.step}: not what the run trained on: {step.difference}")
    for note in report.notes:
        say(note)


def _table(report: ReplayReport) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("step", *COLUMNS.values(), "changed", "clipped"):
        table.add_column(name, justify="right", overflow="fold")
    for step in report.steps:
        changed = f"{step.datums_changed} of {step.run['datums']:.0f}"
        table.add_row(f"{step.step}", *_cells(step.run, step.replay), changed, _share(step.clipped))
    run, replay = (_total([getattr(step, side) for step in report.steps]) for side in ("run", "replay"))
    table.add_section()
    changed = f"{sum(step.datums_changed for step in report.steps)} of {run['datums']:.0f}"
    table.add_row("all", *_cells(run, replay), changed, "")
    return table


def _cells(run: dict[str, float], replay: dict[str, float]) -> list[Text]:
    pairs = [(_number(run[name]), _number(replay[name])) for name in COLUMNS]
    return [Text(before) if before == now else Text(f"{before} → {now}", "yellow") for before, now in pairs]


def _total(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    total = {name: sum(step[name] for step in steps) for name in steps[0]}
    trials = max(total["trials"], 1.0)
    return total | {name: sum(step[name] * step["trials"] for step in steps) / trials for name in MEANS}


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def _share(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"
