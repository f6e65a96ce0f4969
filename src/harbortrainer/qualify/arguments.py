"""Arguments of the command `tasks`."""

import os
from typing import Any

import chz

from harbortrainer.cli.output import JSON
from harbortrainer.config import SETTINGS
from harbortrainer.setting import ABOVE_0, FROM_0, Setting, field

_DIRS = "folders of Harbor task directories, or task directories; a,b or DIR DIR"


def _same(name: str) -> Any:
    """The trainer's field of that name."""
    one: Setting = SETTINGS[name]
    return field(one.default, one.doc, check=one.check)


@chz.chz
class ListArgs:
    dirs: tuple[str, ...] = field(doc=_DIRS)
    json: str | None = field(None, JSON)


@chz.chz
class SplitArgs(ListArgs):
    eval_split: float = _same("eval_split")
    eval_tasks: tuple[str, ...] = _same("eval_tasks")
    family: str | None = _same("family")
    seed: int = _same("seed")
    allow_family_overlap: bool = _same("allow_family_overlap")


@chz.chz
class CheckArgs(ListArgs):
    n_parallel: int = field(max(2, os.cpu_count() or 2), "trials at once", check=ABOVE_0)
    n_oracle: int = field(3, "fresh trials of the oracle, which all must earn 1", check=ABOVE_0)
    slow_build_sec: float = field(120.0, "seconds of an image build above which it warns", check=FROM_0)
    slow_trial_sec: float = field(300.0, "seconds of an oracle's trial above which it warns", check=FROM_0)
    trial_timeout_sec: float = _same("trial_timeout_sec")
    environment_type: str = _same("environment_type")
    environment_kwargs: dict[str, Any] = _same("environment_kwargs")
    quarantine: bool = field(False, "true = list the bad tasks in each folder's quarantine.txt")
    cache: bool = field(True, "false = ignore cached reports")


@chz.chz
class GetArgs:
    dirs: tuple[str, ...] = field(doc="NAME@VERSION or ORG/NAME@VERSION of the registry")
    to: str = field(doc="folder to create; if it exists, check its digests instead")
    registry: str | None = field(None, "JSON file or URL of the registry; None = Harbor's")


@chz.chz
class AllowArgs:
    task: str = field(doc="task directory")
    things: tuple[str, ...] = field(
        (), "/PATH, /FOLDER/ with all that is below it, tcp:PORT, unix:NAME, process:NAME; none = list what is allowed"
    )
    trial: str | None = field(None, "folder of a stored trial: allow what its causes.json names, too")
    remove: bool = field(False, "true = no longer allow the things; without any, nothing")
