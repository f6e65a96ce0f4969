"""Reports of former probes, one small file for each server (its version and settings, not its start) and base model."""

import hashlib
from pathlib import Path

from src.caches import cache_folder
from src.probe.report import ServerReport
from src.run.files import replace_text


def load(fingerprint: str, model_name: str) -> ServerReport | None:
    """The report of exactly this server and model; None when there is none that can be read."""
    try:
        report = ServerReport.from_json(_file(fingerprint, model_name).read_text())
    except (OSError, ValueError):
        return None
    same = (report.fingerprint, report.model_name) == (fingerprint, model_name)
    return report if same else None


def store(report: ServerReport) -> None:
    """Raises OSError when the folder cannot be written."""
    path = _file(report.fingerprint, report.model_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, report.to_json())


def _file(fingerprint: str, model_name: str) -> Path:
    key = hashlib.sha256(f"{fingerprint}\n{model_name}".encode()).hexdigest()
    return cache_folder("contracts") / f"{key[:32]}.json"
