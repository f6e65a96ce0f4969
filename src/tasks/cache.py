"""Qualifications that were made before: one file for each content of a task and way of qualifying it."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from src.run.files import replace_text
from src.tasks.findings import Finding, Level, Report

_METHOD = 2  # raise it when a qualification finds other things


class Cache:
    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """`settings`: whatever beside the task decides what is found."""
        self._folder = folder
        self._settings = json.dumps([_METHOD, settings], sort_keys=True, default=str)

    def get(self, task: Path, digest: str) -> Report | None:
        try:
            found = json.loads(self._file(digest).read_text())
        except (OSError, ValueError):
            return None
        findings = [Finding(one["kind"], Level(one["level"]), one["detail"]) for one in found.pop("findings")]
        return replace(Report(**found, findings=findings), name=task.name, path=str(task), cached=True)

    def put(self, report: Report) -> None:
        """Raises OSError: the folder cannot be written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_text(self._file(report.digest), json.dumps(asdict(report)))

    def _file(self, digest: str) -> Path:
        return self._folder / f"{hashlib.sha256(f'{digest}{self._settings}'.encode()).hexdigest()}.json"
