"""A session ends when its client was silent while the API listened, as long as the time-out: see api_listening.

Upstream: skyrl/tinker/engine.py, TinkerEngine.cleanup_stale_sessions.
"""

# pyright: reportMissingImports=false
import math
import os
import time
from pathlib import Path
from typing import Any

from skyrl.tinker.engine import TinkerEngine
from skyrl.utils.log import logger

from repairs.shared import LISTENS_FILE, longest_gap

stock_cleanup = TinkerEngine.cleanup_stale_sessions


def listened_sec(timeout_sec: float) -> float:
    """For how long the API has listened until now; 0 while it does not, infinite where it does not show it."""
    try:
        shown = Path(os.environ[LISTENS_FILE]).stat()
    except (KeyError, OSError):
        return math.inf
    silent = time.time() - shown.st_mtime > longest_gap(timeout_sec)
    return 0.0 if silent else shown.st_mtime - shown.st_atime


def cleanup_stale_sessions(self: Any) -> int:
    """Wraps TinkerEngine.cleanup_stale_sessions."""
    timeout_sec = self.config.session_timeout_sec
    listened = listened_sec(timeout_sec)
    if not listened:
        logger.warning("The API does not listen: no session ends until it has done so for the sessions' time-out")
    return 0 if listened < timeout_sec else stock_cleanup(self)


def apply() -> None:
    TinkerEngine.cleanup_stale_sessions = cleanup_stale_sessions
