"""Rewards that earlier runs measured, kept across runs: of each task the first ones, when its policy was still near
the base model. They are of one model and the settings that its rewards depend on; another model has another file."""

import contextlib
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.caches import cache_folder
from src.config import Config
from src.curriculum.standing import ENOUGH, Measured
from src.disk import telling
from src.errors import DiskFault
from src.rollout.task import Task
from src.run.jsonl import append_line

SETTINGS = (
    "model_name", "enable_thinking", "temperature", "max_turns", "max_tokens", "context_limit", "command_wait",
    "enable_summarize", "proactive_summarization_threshold", "trial_timeout_sec", "environment_type",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """One measurement of a task, of so many trials."""

    digest: str
    model: str
    rewards: float
    trials: int


class KnownRewards:
    """Of one model and its settings. What cannot be read is as if it were not there; nor need it be written."""

    def __init__(self, config: Config) -> None:
        settings = {name: getattr(config, name) for name in SETTINGS}
        self._model = config.model_name
        self._settings = settings
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        self._file = _folder() / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(config.model_name).name)}-{key}.jsonl"

    def of(self, tasks: Sequence[Task]) -> dict[str, Measured]:
        """By task name; the newest measurements, until there are ENOUGH trials."""
        by_digest: dict[str, list[Known]] = defaultdict(list)
        for one in _read(self._file):
            by_digest[one.digest].append(one)
        return {task.name: newest(by_digest[task.digest]) for task in tasks if task.digest in by_digest}

    def note(self, run: str, step: int, measured: Mapping[Task, Measured]) -> None:
        """Append what a step of a run measured."""
        with contextlib.suppress(OSError, DiskFault), telling(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            for task, (rewards, trials) in measured.items():
                record = {"task": task.name, "digest": task.digest, "rewards": rewards, "trials": trials}
                append_line(self._file, record | {"run": run, "step": step, "settings": self._settings})


def newest(measurements: Iterable[Known]) -> Measured:
    """Sum of rewards and number of trials of the last ones that have ENOUGH between them."""
    rewards, trials = 0.0, 0
    for one in reversed(list(measurements)):
        rewards, trials = rewards + one.rewards, trials + one.trials
        if trials >= ENOUGH:
            break
    return rewards, trials


def known_by_digest() -> defaultdict[str, dict[str, Measured]]:
    """Digest of a task -> name of the file of a model and its settings -> what is known of it."""
    found: defaultdict[str, dict[str, Measured]] = defaultdict(dict)
    for file in sorted(_folder().glob("*.jsonl")):
        measurements: dict[str, list[Known]] = defaultdict(list)
        for one in _read(file):
            measurements[one.digest].append(one)
        for digest, ones in measurements.items():
            found[digest][file.stem] = newest(ones)
    return found


def _folder() -> Path:
    return cache_folder("rewards")


def _read(file: Path) -> Iterator[Known]:
    """Whole lines only: several runs append to the file, and one may have been killed in the middle of it."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            one: dict[str, Any] = json.loads(line)
            yield Known(one["digest"], one["settings"]["model_name"], float(one["rewards"]), int(one["trials"]))
