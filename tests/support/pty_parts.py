"""A command on a terminal of its own, and everything that it wrote there."""

import os
import pty
import subprocess
import termios
import threading
from collections.abc import Sequence

from tests.conftest import ROOT


def on_terminal(
    command: Sequence[str], *, columns: int, rows: int, limit_sec: float = 1800, **environment: str
) -> tuple[int, str]:
    """Exit status, and what the terminal was sent. `environment`: besides this process's."""
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (rows, columns))
    sent: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(reader, 65536):
                sent.append(data)
        except OSError:  # how a terminal ends that nobody writes to any more
            return

    without = ("COLUMNS", "LINES", "NO_COLOR", "SKYRL_TX_URL", "TINKER_API_KEY")
    env = {name: value for name, value in os.environ.items() if name not in without}
    process = subprocess.Popen(
        command, cwd=ROOT, env=env | {"TERM": "xterm-256color"} | environment,
        stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        status = process.wait(limit_sec)
    finally:
        process.kill()
        thread.join(60)
        os.close(reader)
    return status, b"".join(sent).decode()
