"""The programs of a run's agent, by which a resumed run knows that they are the same."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbortrainer.config import Config
from harbortrainer.errors import UserError

KEY = "agent_pack"  # in versions.json


def pack_digest(config: Config) -> str:
    """Of the locked programs in agents_dir (`scripts/agents/pack`); "" without a lock there."""
    if config.agents_dir is None:
        return ""
    lock = Path(config.agents_dir) / f"{config.agent}.lock"
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:16] if lock.is_file() else ""


def check_pack(config: Config, versions: Mapping[str, Any]) -> None:
    """`versions`: of the run's start. Raises UserError when its agent had other programs."""
    before, now = versions.get(KEY, ""), pack_digest(config)
    if before != now:
        raise UserError(
            f"agents_dir={config.agents_dir}: its programs of {config.agent} are not those that the run began with "
            f"({now or 'none'}, {before or 'none'}); pack the agent with the checkout that the run began with"
        )
