"""The programs of a run's agent, by which a resumed run knows that they are the same."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.agents import agents_of

KEY, NAME = "agent_pack", "agent"  # in versions.json


def pack_digest(config: Config) -> str:
    """Return the digest of the locked programs in agents_dir (`scripts/agents/pack`); "" without a lock there."""
    lock = "".join(_read(config.agents_dir, agent) for agent in agents_of(config))
    return hashlib.sha256(lock.encode()).hexdigest()[:16] if lock else ""


def agent_versions(config: Config) -> dict[str, str]:
    """Get the run's packed agents with their versions, and the digest of their programs, as versions.json has them."""
    versions = {agent: packed_version(config.agents_dir, agent) for agent in agents_of(config)}
    return {KEY: pack_digest(config), NAME: ", ".join(f"{agent} {one}" for agent, one in versions.items() if one)}


def packed_version(agents_dir: str | None, agent: str) -> str:
    """Return the version of the agent's program in a folder that `scripts/agents/pack` filled; "" without one."""
    return _read(agents_dir, agent).partition(" ")[2].strip()


def _read(agents_dir: str | None, agent: str) -> str:
    """The line of the pack: a digest of what was locked, and the version."""
    lock = Path(agents_dir or ".") / f"{agent}.lock"
    return lock.read_text() if agents_dir is not None and lock.is_file() else ""


def check_pack(config: Config, versions: Mapping[str, Any]) -> None:
    """`versions`: of the run's start. Raises UserError when its agent had other programs."""
    before, now = versions.get(KEY, ""), pack_digest(config)
    if before != now:
        raise UserError(
            f"agents_dir={config.agents_dir}: its programs of {config.agent} are not those that the run began with "
            f"({now or 'none'}, {before or 'none'}); pack the agent with the checkout that the run began with"
        )
