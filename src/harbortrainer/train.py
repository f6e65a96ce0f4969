"""The arguments of a training run: over those that an earlier process of the same run was given."""

import logging
from collections.abc import Sequence

import chz

from harbortrainer.cli.arguments import given, read_arguments, validate
from harbortrainer.config import SETTINGS, Config
from harbortrainer.run.config_changes import ConfigHistory, from_json
from harbortrainer.run.directory import RunDirectory, find_run, open_run_directory
from harbortrainer.stopping import Stop

DRY_RUN = "--dry-run"  # plan=true
log = logging.getLogger("harbortrainer")


def checked(argv: Sequence[str]) -> Config:
    """`parse`, then every check that needs neither network nor Docker. Raises UserError."""
    config = parse(argv)
    validate(config)
    return config


async def train(config: Config, stop: Stop) -> int:
    """Exit status of the run, or of its plan. What a run imports takes seconds: only once the arguments are right."""
    if config.plan:
        from harbortrainer.planning import dry_run

        return await dry_run(config)
    from harbortrainer.training.session import run_training

    return await run_training(config, stop)


def parse(argv: Sequence[str]) -> Config:
    """A Config of `name=value`. Values of a run that is continued come first: resume=RUN_DIR, or its run_name.

    Raises UserError for anything wrong.
    """
    argv = ["plan=true" if word == DRY_RUN else word for word in argv]
    run = _earlier_run(argv)
    if run is None:
        return read_arguments(Config, argv)
    history = ConfigHistory(run)
    config = read_arguments(Config, argv, saved=chz.asdict(from_json(history.latest)))
    history.changes(config)  # refuses what must not be changed
    for line in history.removed:
        log.warning("%s: %s", run.config, line)
    return chz.replace(config, resume=str(run.path))


def _earlier_run(argv: Sequence[str]) -> RunDirectory | None:
    if (path := given(argv, "resume")) is not None:
        return open_run_directory(path)
    name = given(argv, "run_name")
    return None if name is None else find_run(given(argv, "logs_dir") or SETTINGS["logs_dir"].default, name)
