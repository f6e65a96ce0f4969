"""Logging, warnings and prints of libraries: to the run's log file while a display has the terminal."""

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO, override

OURS = ("harbortrainer", "src")
HARBORS = "harbortrainer.harbor"  # what Harbor said, by way of ours
MAX_LINE = 10_000  # characters that are kept of a line that does not end
log = logging.getLogger("harbortrainer")


class Screen(logging.Handler):
    """Our own warnings to the terminal, and that something failed of which nobody was told."""

    def __init__(self, warn: Callable[[int, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.name.split(".")[0] in OURS and record.name != HARBORS:
            self._warn(record.levelno, record.getMessage())
        elif record.name == "asyncio" and record.levelno >= logging.ERROR:
            self._warn(record.levelno, f"{record.getMessage().splitlines()[0]} (the rest is in run.log)")


class Stray(io.TextIOBase):
    """Stands for stdout or stderr: each line that is written is a record of the log. It is no terminal."""

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
        """The real one: faulthandler and child processes write there."""
        return self._real.fileno()

    @override
    def write(self, text: str, /) -> int:
        if getattr(self._line, "busy", False):  # logging itself failed, and says so
            return len(text)
        *lines, rest = f"{getattr(self._line, 'text', '')}{text}".replace("\r", "\n").split("\n")
        if len(rest) > MAX_LINE:
            lines, rest = [*lines, rest], ""
        self._line.text, self._line.busy = rest, True
        try:
            for line in lines:
                if line.strip():
                    self._log.info("%s", line)
                if line.startswith("Traceback "):  # of a thread, or of a library that goes on
                    log.error("a traceback was printed; it is in run.log")
        finally:
            self._line.busy = False
        return len(text)


@contextlib.contextmanager
def captured(*handlers: logging.Handler) -> Iterator[None]:
    """Within the block stdout and stderr are Strays, and the log goes to these handlers and not to stderr.

    The level of libraries stays (WARNING); ours and what is printed is logged from INFO on.
    """
    root, noted = logging.getLogger(), [logging.getLogger(name) for name in (*OURS, "print")]
    plain = [handler for handler in root.handlers if type(handler) is logging.StreamHandler]
    levels = [(logger, logger.level) for logger in noted]
    for handler in plain:
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    for logger in noted:
        logger.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        with (
            contextlib.redirect_stdout(Stray("stdout", sys.stdout)),
            contextlib.redirect_stderr(Stray("stderr", sys.stderr)),
        ):
            yield
    finally:
        logging.captureWarnings(False)
        for logger, level in levels:
            logger.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
        for handler in plain:
            root.addHandler(handler)
