"""Logs that do not grow without end: a file is put aside as FILE.1, … when it is full, and the oldest is deleted.

As a program, `logs.py FILE MIB READY`, it writes its standard input to FILE, and its first line that starts with
`ready: ` to READY as well: scripts/lib/server.sh starts it behind a server in the background. It needs the standard
library alone.
"""

import contextlib
import logging
import os
import re
import signal
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

KEPT = 3  # parts beside the file itself
CHUNK = 1 << 16  # bytes; a longer line is cut


def say(line: str) -> None:
    """Prints; where nobody reads it, or the disk is full, the work goes on."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


class _Parts(RotatingFileHandler):
    terminator = ""

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk costs lines; it must not end, or hold up, what writes them."""


class Log:
    """Takes what a program writes, and keeps its lines whole. `part_bytes`: of one file."""

    def __init__(self, file: Path, part_bytes: int) -> None:
        self._parts = _Parts(file, maxBytes=part_bytes, backupCount=KEPT, encoding="utf-8", errors="replace")
        self._rest = b""

    def write(self, data: bytes) -> bytes:
        """Returns the lines that are whole now."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if len(data) - end > CHUNK:
            end = len(data)
        self._rest = data[end:]
        self._put(data[:end])
        return data[:end]

    def close(self) -> None:
        self._put(self._rest)
        self._rest = b""
        self._parts.close()

    def _put(self, data: bytes) -> None:
        if data:
            self._parts.handle(logging.makeLogRecord({"msg": data.decode(errors="replace")}))


def clear(file: Path) -> None:
    """Empties a log, and deletes what was put aside of it."""
    file.write_bytes(b"")
    for number in range(1, KEPT + 1):
        file.with_name(f"{file.name}.{number}").unlink(missing_ok=True)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when nobody can write to it any more
    log, ready = Log(Path(sys.argv[1]), int(sys.argv[2]) << 20), Path(sys.argv[3])
    with contextlib.closing(log):
        while data := os.read(sys.stdin.fileno(), CHUNK):
            line = re.search(rb"^ready: .*\n", log.write(data), re.MULTILINE)
            if line and not ready.exists():
                with contextlib.suppress(OSError):  # a full disk
                    ready.write_bytes(line[0])


if __name__ == "__main__":
    main()
