"""Redirects library logging, warnings and prints to RUN_DIR/run.log while a display uses the terminal."""

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO, override

from harbortrainer.errors import indented

OURS = ("harbortrainer", "src")
HARBORS = "harbortrainer.harbor"  # Harbor's log, passed on by ours
NAME = "run.log"
MAX_BYTES = 10_000_000  # of a file; with the two before it 30 MB
N_BEFORE = 2
MAX_TEXT = 20_000  # characters of one record
MAX_LINE = 10_000  # characters of a printed line without an end
log = logging.getLogger("harbortrainer")


class RunLog(RotatingFileHandler):
    """Keeps records until `open` names the folder, then writes them there. `broken` gets the first write error."""

    def __init__(self, broken: Callable[[str], None]) -> None:
        super().__init__(NAME, maxBytes=MAX_BYTES, backupCount=N_BEFORE, encoding="utf-8", errors="replace", delay=True)
        self.setFormatter(_Format("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._waiting: list[logging.LogRecord] | None = []
        self._broken: Callable[[str], None] | None = broken

    def open(self, folder: Path) -> None:
        """Append to the file of an earlier process."""
        self.acquire()
        self.baseFilename = str(folder / NAME)
        waiting, self._waiting = self._waiting, None
        for record in waiting or ():
            self.emit(record)
        self.release()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self._waiting is None:
            super().emit(record)
        else:
            self._waiting.append(record)

    @override
    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk did not take the rest
            super().close()

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        """Report the first write error; logging also calls this when a message does not fit its arguments."""
        error, report = sys.exc_info()[1], self._broken
        if isinstance(error, OSError) and report is not None:
            self._broken = None
            report(f"{self.baseFilename} cannot be written: {error.strerror}; the run continues without it")


class _Format(logging.Formatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, or as a line with others set in."""
        text = super().format(record)
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]} … {len(text) - MAX_TEXT} characters more"
        return indented(text)


class WarningHandler(logging.Handler):
    """Forwards our warnings, and asyncio's errors that nothing awaited, to `warn`."""

    def __init__(self, warn: Callable[[int, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.name.split(".")[0] in OURS and record.name != HARBORS:
            self._warn(record.levelno, record.getMessage())
        elif record.name == "asyncio" and record.levelno >= logging.ERROR:
            self._warn(record.levelno, f"{record.getMessage().splitlines()[0]} (the rest is in run.log)")


class LoggedStream(io.TextIOBase):
    """Replaces stdout or stderr and logs each written line."""

    def __init__(self, name: str, real: TextIO) -> None:
        self._log = logging.getLogger(f"print.{name}")
        self._real = real
        self._line = threading.local()

    @property
    @override
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._real.encoding

    @override
    def writable(self) -> bool:
        return True

    @override
    def fileno(self) -> int:
        """Return the real stream's, for faulthandler and child processes."""
        return self._real.fileno()

    @override
    def write(self, text: str, /) -> int:
        if getattr(self._line, "busy", False):  # logging failed and prints why
            return len(text)
        *lines, rest = f"{getattr(self._line, 'text', '')}{text}".replace("\r", "\n").split("\n")
        if len(rest) > MAX_LINE:
            lines, rest = [*lines, rest], ""
        self._line.text, self._line.busy = rest, True
        try:
            for line in filter(str.strip, lines):
                self._log.info("%s", line)
                if line.startswith("Traceback "):  # of a thread, or of a library that continues
                    log.error("a traceback was printed; it is in run.log")
        finally:
            self._line.busy = False
        return len(text)


@contextlib.contextmanager
def captured(*handlers: logging.Handler) -> Iterator[None]:
    """Put LoggedStreams in the place of stdout and stderr within the block; logging goes to these handlers.

    Libraries keep their level (WARNING); records of this package and printed lines are logged from INFO.
    """
    root, noted = logging.getLogger(), [logging.getLogger(name) for name in (*OURS, "print")]
    before, levels = root.handlers[:], [logger.level for logger in noted]
    root.handlers = [one for one in before if type(one) is not logging.StreamHandler] + list(handlers)
    for logger in noted:
        logger.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        with (
            contextlib.redirect_stdout(LoggedStream("stdout", sys.stdout)),
            contextlib.redirect_stderr(LoggedStream("stderr", sys.stderr)),
        ):
            yield
    finally:
        logging.captureWarnings(False)
        for logger, level in zip(noted, levels, strict=True):
            logger.setLevel(level)
        root.handlers = before
