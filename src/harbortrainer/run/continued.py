"""Arguments of a command that trains: a continued run gives the values left out."""

import logging
from collections.abc import Sequence

import chz

from harbortrainer.cli.arguments import given, read_arguments
from harbortrainer.config import SETTINGS, RunSettings
from harbortrainer.run.config_changes import ConfigHistory, from_json
from harbortrainer.run.directory import RunDirectory, find_run, open_run_directory

log = logging.getLogger("harbortrainer")


def read_run_arguments[A: RunSettings](args: type[A], kind: type[RunSettings], argv: Sequence[str]) -> A:
    """Arguments from `name=value`; a continued run (resume=RUN_DIR, or its run_name) gives the values left out.

    `kind`: the settings among `args`. Raises UserError for anything wrong.
    """
    run = _earlier_run(argv)
    if run is None:
        return read_arguments(args, argv)
    history = ConfigHistory(run, kind)
    given_now = read_arguments(args, argv, saved=chz.asdict(from_json(kind, history.latest)))
    history.changes(given_now)  # refuses what must not be changed
    for line in history.removed:
        log.warning("%s: %s", run.config, line)
    return chz.replace(given_now, resume=str(run.path))


def _earlier_run(argv: Sequence[str]) -> RunDirectory | None:
    if (path := given(argv, "resume")) is not None:
        return open_run_directory(path)
    name = given(argv, "run_name")
    return None if name is None else find_run(given(argv, "logs_dir") or SETTINGS["logs_dir"].default, name)
