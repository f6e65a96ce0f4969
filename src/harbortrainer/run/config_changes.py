"""The configuration of a run over its processes: changes on resume, the step that each holds from, and refusals."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz

from harbortrainer.cli.arguments import given, read_arguments
from harbortrainer.commands import COMMAND, SFT, TRAIN
from harbortrainer.config import ADDRESS, FIXED, LENGTH, NEXT_STEP, SETTINGS, RunSettings, TrialSettings
from harbortrainer.durable.files import damaged, read_json
from harbortrainer.durable.jsonl import append_line, cut_torn_line, read_lines
from harbortrainer.errors import UserError
from harbortrainer.model_file import with_texts
from harbortrainer.run.directory import RunDirectory, find_run, open_run_directory
from harbortrainer.run.earlier_settings import current, removed
from harbortrainer.setting import UNTIL_SAVED, Resume, settings, shown
from harbortrainer.sft_config import SftConfig

log = logging.getLogger("harbortrainer")
# What the rewards of a trial depend on: one group has one setting of each.
TRIAL_SETTINGS = (
    "temperature",
    *(name for name, setting in settings(TrialSettings).items() if setting.resume is NEXT_STEP),
)


def command_of(kind: type[RunSettings]) -> str:
    """Return the command that runs such settings."""
    return SFT if issubclass(kind, SftConfig) else TRAIN


@dataclass(frozen=True, slots=True)
class SettingChange:
    field: str
    before: Any  # as JSON has it
    now: Any
    resume: Resume


class ConfigHistory[C: RunSettings]:
    """The configuration that a run was started with, and each later change with its first step.

    Raises UserError when one of the files is damaged, or belongs to a run of another command.
    """

    def __init__(self, run: RunDirectory, kind: type[C]) -> None:
        self._run, self._kind = run, kind
        self._settings = {name: one for name, one in settings(kind).items() if one.resume is not ADDRESS}
        saved = read_json(run.config)
        if (command := saved.get(COMMAND, TRAIN)) != command_of(kind):
            raise UserError(f"resume={run.path}: it is a run of {command}; continue it with {run.resume}")
        if lacking := [name for name, one in self._settings.items() if one.required and name not in saved]:
            raise damaged(run.config, f"no {', '.join(lacking)}")
        defaults = {
            name: UNTIL_SAVED.get(name, one.default) for name, one in self._settings.items() if not one.required
        }
        self._defaults, self._saved = _plain(defaults), saved  # a setting may be younger than the run
        cut_torn_line(run.config_changes)
        self._records = read_lines(run.config_changes)
        self.removed = removed(saved, settings(kind))

    @property
    def latest(self) -> dict[str, Any]:
        """Values of the last process by field, without those of ADDRESS."""
        return self._values(len(self._records))

    def changes(self, config: C) -> list[SettingChange]:
        """Return the fields of `config` that differ from the last process. Raises UserError for a fixed field."""
        before, now = self.latest, to_json(config)
        found = [SettingChange(name, before[name], now[name], one.resume) for name, one in self._settings.items()]
        changed = [change for change in found if change.before != change.now]
        for change in changed:
            if change.resume is FIXED:
                raise UserError(
                    f"{change.field}={shown(change.now)}: {self._run.path} was started with "
                    f"{change.field}={shown(change.before)}; leave it out or start a new run"
                )
        return changed

    def record(self, changes: list[SettingChange], from_step: int) -> None:
        """Record `changes`, which hold from `from_step` on."""
        if changes:
            values = {change.field: {"before": change.before, "now": change.now} for change in changes}
            record = {"time": round(time.time(), 3), "from_step": from_step, "changes": values}
            append_line(self._run.config_changes, record)
            self._records.append(record)

    def configs(self) -> list[tuple[int, C]]:
        """Return (first step, configuration) in order of time; the last one is in force."""
        steps = [0, *(record["from_step"] for record in self._records)]
        return [(step, from_json(self._kind, self._values(n))) for n, step in enumerate(steps)]

    def _values(self, n_records: int) -> dict[str, Any]:
        return self._defaults | current(_changed(self._saved, self._records[:n_records]), self._settings)


def last_values(run: RunDirectory) -> dict[str, Any]:
    """Get what config.json says, with all later changes; of a run of any command. Raises UserError: a damaged file."""
    return _changed(read_json(run.config), read_lines(run.config_changes))


def _changed(saved: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {**saved, **{name: one["now"] for record in records for name, one in record["changes"].items()}}


def note(change: SettingChange, from_step: int) -> str:
    """Return one line for an accepted change."""
    text = f"{change.field}={shown(change.now)}, was {shown(change.before)}"
    if change.resume is NEXT_STEP:
        return f"CHANGED from step {from_step + 1} on: {text}; its steps before and after are two experiments"
    if change.resume is LENGTH:
        return f"{text}; a learning rate that decays follows the new length from step {from_step + 1} on"
    return text


def to_json(config: RunSettings) -> dict[str, Any]:
    """Return the configuration as plain JSON values."""
    return _plain(chz.asdict(config))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them."""
    return json.loads(json.dumps(values))


def to_save(config: RunSettings) -> dict[str, Any]:
    """Return the configuration as config.json holds it; a run of another command than train names its command."""
    command = command_of(type(config))
    return to_json(config) | ({} if command == TRAIN else {COMMAND: command})


def from_json[C: RunSettings](kind: type[C], values: Mapping[str, Any]) -> C:
    """Return a field that came after the values were saved has its default."""
    return kind(**tuples(values))


def tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of JSON as fields have them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


# These settings change how many turns, tokens or seconds a trial takes.
WORKLOAD = (
    "model_name",
    *(name for name, setting in settings(TrialSettings).items() if setting.resume in (FIXED, NEXT_STEP)),
)


def same_workload(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether trials under two saved configurations cost the same; a value that was not saved is the default."""
    return all(one.get(name, SETTINGS[name].default) == other.get(name, SETTINGS[name].default) for name in WORKLOAD)


def read_run_arguments[A: RunSettings](args: type[A], kind: type[RunSettings], argv: Sequence[str]) -> A:
    """Return arguments from `name=value`; a continued run (resume=RUN_DIR, or its run_name) gives the values left out.

    `kind`: the settings among `args`. Raises UserError for anything wrong.
    """
    if (path := given(argv, "resume")) is not None:
        run = open_run_directory(path)
        _require_its_name(run, path, argv)
    elif (name := given(argv, "run_name")) is not None:
        run = find_run(given(argv, "logs_dir") or SETTINGS["logs_dir"].default, name)
    else:
        run = None
    if run is None:
        return with_texts(read_arguments(args, argv))
    history = ConfigHistory(run, kind)
    given_now = with_texts(read_arguments(args, argv, saved=chz.asdict(from_json(kind, history.latest))))
    history.changes(given_now)  # refuses what must not be changed
    for line in history.removed:
        log.warning("%s: %s", run.config, line)
    return chz.replace(given_now, resume=str(run.path))


def _require_its_name(run: RunDirectory, path: str, argv: Sequence[str]) -> None:
    """Raise UserError when run_name or logs_dir beside resume names another run."""
    name, logs_dir = given(argv, "run_name"), given(argv, "logs_dir")
    if name is not None and name != run.name:
        raise UserError(f"run_name={name}: resume={path} continues {run.name}; give one of them")
    if logs_dir is not None and Path(logs_dir).expanduser().resolve() != run.path.parent:
        raise UserError(f"logs_dir={logs_dir}: resume={path} continues a run in {run.path.parent}; leave it out")
