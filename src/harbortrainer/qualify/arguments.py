"""Arguments of the command `tasks`."""

import os
from typing import Any

import chz

from harbortrainer.cli.output import JSON
from harbortrainer.config import ABOVE_0_OR_AUTO, AUTO, SETTINGS, Auto
from harbortrainer.setting import ABOVE_0, FROM_0, Setting, field

_DIRS = "sources of Harbor tasks as tasks_dir takes them, or task directories; a,b or DIR DIR"


def _same(name: str) -> Any:
    """The trainer's field of that name."""
    one: Setting = SETTINGS[name]
    return field(one.default, one.doc, check=one.check)


@chz.chz
class ListArgs:
    dirs: tuple[str, ...] = field(doc=_DIRS)
    tasks_include: tuple[str, ...] = _same("tasks_include")
    tasks_exclude: tuple[str, ...] = _same("tasks_exclude")
    json: str | None = field(None, JSON)


@chz.chz
class BuildArgs(ListArgs):
    n_parallel: int | Auto = field(
        AUTO,
        "task images that are built or pulled at once; auto = half of the processors, 2 to 16",
        check=ABOVE_0_OR_AUTO,
    )
    images: str | None = _same("images")
    base_images: str | None = _same("base_images")
    images_gb: float | Auto = _same("images_gb")
    outage_limit_sec: float = _same("outage_limit_sec")
    environment_kwargs: dict[str, Any] = _same("environment_kwargs")


@chz.chz
class SplitArgs(ListArgs):
    eval_split: float = _same("eval_split")
    eval_tasks: tuple[str, ...] = _same("eval_tasks")
    family: str | None = _same("family")
    seed: int = _same("seed")
    allow_family_overlap: bool = _same("allow_family_overlap")


@chz.chz
class CloseArgs:
    a: str = field(doc="tasks to look at, named as in tasks_dir")
    b: str = field(doc="tasks that they may be close to, such as a benchmark")
    json: str | None = field(None, JSON)


@chz.chz
class CheckArgs(ListArgs):
    n_parallel: int = field(max(2, os.cpu_count() or 2), "trials at once", check=ABOVE_0)
    sample: int = field(0, "tasks that have trials, drawn by chance; the others are read only; 0 = all", check=FROM_0)
    n_oracle: int = field(3, "fresh trials of the oracle, which all must earn 1", check=ABOVE_0)
    slow_build_sec: float = field(120.0, "seconds of an image build above which it warns", check=FROM_0)
    slow_trial_sec: float = field(300.0, "seconds of an oracle's trial above which it warns", check=FROM_0)
    trial_timeout_sec: float = _same("trial_timeout_sec")
    environment_type: str = _same("environment_type")
    environment_kwargs: dict[str, Any] = _same("environment_kwargs")
    images: str | None = _same("images")
    base_images: str | None = _same("base_images")
    images_gb: float | Auto = _same("images_gb")
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
