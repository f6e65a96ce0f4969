"""A file of `tasks measure`, without its trials."""

import json
from collections.abc import Mapping
from pathlib import Path

from harbortrainer.tasks.folders import digest


def write_measured(file: Path, rewards: Mapping[Path, float | None]) -> str:
    """`rewards`: task directory -> mean reward. Returns the file's path."""
    tasks = {path.name: {"digest": digest(path), "reward": reward} for path, reward in rewards.items()}
    file.write_text(json.dumps({"tasks": tasks}))
    return str(file)
