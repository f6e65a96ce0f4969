"""A real server that can be killed, paused, started again, and made to forget everything."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.conftest import SMALL_SERVER, free_port, succeed

MODEL = "models/quickstart"


class Server:
    """One on a port of its own; started again it has the same port and, unless it is made to forget, its database."""

    def __init__(self, state: Path, **settings: str) -> None:
        self.state = state
        self._port = str(free_port())
        self._env = SMALL_SERVER | {"SKYRL_TX_PORT": self._port, "SKYRL_TX_STATE": str(state)} | settings
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        succeed("scripts/start_skyrl_tx.sh", "--background", MODEL, env=self._env, timeout_sec=600)

    def stop(self) -> None:
        succeed("scripts/stop_skyrl_tx.sh", self._port, env=self._env)

    def kill(self) -> None:
        """API and engine at once, as when the machine goes down."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Connections are taken, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def forget(self) -> None:
        """Database and checkpoints are gone, as with a lost disk. While it does not run."""
        shutil.rmtree(self.state)

    def _signal(self, number: signal.Signals) -> None:
        found = subprocess.run(["pgrep", "-f", f"launch.py.*{self._port}"], capture_output=True, text=True, check=True)
        for pid in map(int, found.stdout.split()):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
