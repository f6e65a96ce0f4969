"""RUN_DIR/run.log: what every library and the run itself said, bounded, and never a reason for a run to end."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import override

NAME = "run.log"
MAX_BYTES = 10_000_000  # of a file; with the two before it 30 MB
N_BEFORE = 2
MAX_TEXT = 20_000  # characters of one record
MAX_WAITING = 1000  # records before there is a folder


class RunLog(logging.Handler):
    """Keeps records until `open` names the folder, then writes them there. `broken` is told once why it cannot."""

    def __init__(self, broken: Callable[[str], None]) -> None:
        super().__init__()
        self.setFormatter(_Format("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._waiting: deque[logging.LogRecord] = deque(maxlen=MAX_WAITING)
        self._file: _File | None = None
        self._broken = broken

    def open(self, folder: Path) -> None:
        """An earlier process's lines stay: this one's come after them."""
        file = _File(folder / NAME, self._broken)
        file.setFormatter(self.formatter)
        with self.lock or contextlib.nullcontext():
            for record in self._waiting:
                file.handle(record)
            self._waiting.clear()
            self._file = file

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self._file is not None:
            self._file.handle(record)
        else:
            self._waiting.append(record)

    @override
    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # what a full disk did not take
                self._file.close()
        super().close()


class _File(RotatingFileHandler):
    def __init__(self, path: Path, broken: Callable[[str], None]) -> None:
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=N_BEFORE, encoding="utf-8", errors="replace", delay=True)
        self._broken: Callable[[str], None] | None = broken

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        """Called where an error is handled: a full disk, or a message that does not fit its arguments."""
        import sys

        error, tell = sys.exc_info()[1], self._broken
        if isinstance(error, OSError) and tell is not None:
            self._broken = None
            tell(f"{self.baseFilename} cannot be written: {error.strerror}; the run goes on without it")


class _Format(logging.Formatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        """One record, one line: those below its first are indented."""
        text = super().format(record)
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]} … {len(text) - MAX_TEXT} characters more"
        return harmless(text).replace("\n", "\n    ")


def harmless(text: str) -> str:
    """Without the characters that a terminal obeys: a policy may have written them."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
