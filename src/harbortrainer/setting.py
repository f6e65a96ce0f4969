"""Declares a setting in one place: default, meaning, check, and what a continued run does with another value."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import chz

_KEY = "setting"
REQUIRED: Any = object()  # the default of a required setting


class Resume(Enum):
    """What a continued run, or a continued evaluation, does with another value of a setting."""

    ADDRESS = "names the run: not compared"
    FIXED = "refused: another value makes another run"
    NEXT_STEP = "taken from the first step not trained on; an evaluation refuses it"
    LENGTH = "taken; a learning rate that decays follows the new length"
    TASKS = "taken if the tasks' files are the same; an evaluation refuses it"
    HARMLESS = "taken: no number depends on it"


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on a value that is not None. `words` completes the error "NAME=VALUE: …"."""

    holds: Callable[[Any], bool]
    words: str


ABOVE_0 = Check(lambda value: value > 0, "must be above 0")
COUNTED = Check(lambda value: 0 < value <= 10**6, "must be above 0, 1000000 at most")  # what a step lists one by one
FROM_0 = Check(lambda value: value >= 0, "must be 0 or more")
PORT = Check(lambda port: 0 <= port < 65536, "a port, or 0 for a free one")
BELOW_1 = Check(lambda value: 0 <= value < 1, "must be in [0, 1)")


@dataclass(frozen=True, slots=True)
class Setting:
    default: Any
    doc: str
    check: Check | None
    resume: Resume

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


def field(
    default: Any = REQUIRED, doc: str = "", *, check: Check | None = None, resume: Resume = Resume.HARMLESS
) -> Any:
    """Return a field of a chz class. `doc`: the meaning, with unit and the value that turns it off."""
    about = {_KEY: Setting(default, doc, check, resume)}
    if default is REQUIRED:
        return chz.field(doc=doc, metadata=about)
    if isinstance(default, dict):
        return chz.field(default_factory=lambda: dict(default), doc=doc, metadata=about)
    return chz.field(default=default, doc=doc, metadata=about)


def settings(kind: type) -> dict[str, Setting]:
    """Return the settings of a class by name, those of its bases first."""
    return {name: (field.metadata or {})[_KEY] for name, field in chz.chz_fields(kind).items()}


def problems(values: Any) -> Iterator[str]:
    """Yield an error line for each value that is not finite, or that its check refuses."""
    for name, setting in settings(type(values)).items():
        value = getattr(values, name)
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{name}={shown(value)}: must be a finite number"
        elif setting.check is not None and value is not None and not setting.check.holds(value):
            yield f"{name}={shown(value)}: {setting.check.words}"


def changed(values: Any, *names: str) -> list[str]:
    """`name=value` of those of the named settings that do not have their default."""
    known = settings(type(values))
    found = {name: getattr(values, name) for name in names}
    return [f"{name}={shown(value)}" for name, value in found.items() if value != known[name].default]


def shown(value: Any) -> str:
    """Return a value as typed on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


@dataclass(frozen=True, slots=True)
class Former:
    """A setting that was removed, or a key of one (NAME.KEY).

    `kept`: a value beside the default that another setting says now; `moved`: whatever it is.
    """

    default: Any
    instead: str
    kept: Any = None
    moved: bool = False


_NO_MARKS = "no trial is marked any more; leave it out"
_CONSTANT = "its value is a constant now; leave it out"
UNTIL_SAVED = {"family": ""}  # what a run meant whose configuration lacks a setting, where its default is another
FORMER = {
    "update_timeout_sec": Former(3600.0, _CONSTANT),
    "sample_timeout_sec": Former(600.0, _CONSTANT),
    "command_wait": Former("prompt", "a command ends at its shell's next prompt; leave it out"),
    "n_warm_envs": Former(None, "it follows from n_parallel_envs; leave it out"),
    "eval_overlap": Former(False, "with max_steps_off_policy evaluations run beside training; leave it out"),
    "weights_in_flight": Former("switch", "a running trial takes new weights from its next turn on; leave it out"),
    "importance_cap": Former(2.0, _CONSTANT),
    "reward_weight": Former(1.0, "use advantage=none for 0, or leave it out", kept=0.0),
    "max_container_hours": Former(0.0, "use max_usd, max_trials or max_wall_sec"),
    "server_usd_per_hour": Former(0.0, "use prices=FILE with usd_per_hour (docs/cost.md)"),
    **{
        f"{role}_{part}": Former(default, f"use {role}=FILE (docs/other_models.md)", moved=True)
        for role in ("user", "judge")
        for part, default in (("model", None), ("url", None), ("key", None), ("kwargs", {}))
    },
    "judge_weight": Former(0.1, "use judge=FILE with weight (docs/other_models.md)", moved=True),
    "taxonomy": Former(None, "use judge=FILE with taxonomy (docs/other_models.md)", moved=True),
    "on_stop": Former("cancel", "running trials are cancelled; max_trials lets the last ones end"),
    "init_optimizer": Former(False, "Adam starts afresh; resume=RUN_DIR continues a run with its moments"),
    "max_tokens_total": Former(0.0, "use max_usd with prices=FILE, max_trials or max_wall_sec"),
    "display": Former("auto", "a terminal shows the live view, a pipe or a file has lines; leave it out", moved=True),
    "eval_temperature": Former(None, "evaluations have temperature; python -m src.evaluate has one of its own"),
    "keep_best": Former(0, "the best checkpoint is kept; keep_checkpoints=0 keeps all", kept=1),
    "max_attempts": Former(3, _CONSTANT),
    "quarantine_after": Former(6, _CONSTANT),
    "curriculum_band": Former(None, "use oversample_max, or difficulty=FILE of `tasks measure`"),
    "advantage_baseline": Former("mean", "use advantage, which has its values too", moved=True),
    "clip_low_threshold": Former(None, "use clip_thresholds=LOW,HIGH", moved=True),
    "clip_high_threshold": Former(None, "use clip_thresholds=LOW,HIGH", moved=True),
    "weight_decay": Former(0.0, _CONSTANT),
    "suspect": Former("mask", _NO_MARKS),
    "outcome_policy.suspect": Former("train", _NO_MARKS),
    "environment_kwargs.keep_processes": Former(False, "the agent's processes live on; leave it out"),
}


def url_problem(url: str) -> str:
    """Return what is wrong with the address of an HTTP service; "" = nothing that can be told without asking it."""
    if not url.startswith(("http://", "https://")):
        return "must start with http:// or https://"
    try:
        host, port = urlsplit(url).hostname, urlsplit(url).port
    except ValueError as error:  # "Port out of range 0-65535"
        return str(error)
    return "has no host" if not host else "port 0 takes no connection" if port == 0 else ""
