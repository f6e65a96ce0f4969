"""A real server that can be killed, paused, started again, and made to forget everything."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import MODEL, SMALL_SERVER, free_port, succeed
from tests.support.processes import freeze


class Server:
    """One on a port of its own; started again it has the same port and, unless it is made to forget, its database."""

    def __init__(self, state: Path, *flags: str, model: Path | str = MODEL, **settings: str) -> None:
        """`flags`: skyrl's. `settings`: of scripts/start_skyrl_tx.sh."""
        self.state, self.model = state, model
        self._flags = flags
        self._port = str(free_port())
        self._env = SMALL_SERVER | {"SKYRL_TX_PORT": self._port, "SKYRL_TX_STATE": str(state)} | settings
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self, **settings: str) -> None:
        """`settings`: of this start, over those of all starts."""
        command = ("scripts/start_skyrl_tx.sh", "--background", self.model, *self._flags)
        succeed(*command, env=self._env | settings, timeout_sec=900)

    def stop(self) -> str:
        """What the script says. Safe to repeat."""
        return succeed("scripts/stop_skyrl_tx.sh", self._port, env=self._env)

    def kill(self) -> None:
        """API and engine at once, as when the machine goes down; returns when they are gone, and their port is free."""
        send(self.url, signal.SIGKILL)
        assert wait_until(lambda: not processes_of(self.state), GONE_SEC), "a killed server still runs"

    def forget(self) -> None:
        """Database and checkpoints are gone, as with a lost disk. While it does not run."""
        shutil.rmtree(self.state)


GONE_SEC = 120.0  # in which processes that were killed are gone, on a slow machine


def processes_of(state: Path | str) -> list[int]:
    """Ids of the live processes, API and engine, that were given this state folder."""
    return _pids("-f", f"launch\\.py.*{state}")


def wait_until(condition: Callable[[], bool], limit_sec: float) -> bool:
    end = time.monotonic() + limit_sec
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def checkpoints_base(url: str) -> Path:
    """The folder of the server at this URL."""
    (api,) = _apis(url)
    words = Path(f"/proc/{api}/cmdline").read_text().split("\0")
    return Path(words[words.index("--checkpoints-base") + 1])


def send(url: str, number: signal.Signals, *, engine_only: bool = False) -> None:
    """To the processes of the server at this URL: its engine, and the API before it unless `engine_only`.

    Stopped (SIGSTOP), they take connections and answer nothing; with the engine alone, healthz still answers.
    """
    apis = _apis(url)
    engines = [pid for api in apis for pid in _pids("-f", "-P", str(api), "launch.py --run-engine")]
    assert apis and engines, f"no server at {url}"
    for pid in engines if engine_only else (*apis, *engines):
        with contextlib.suppress(ProcessLookupError):
            freeze(pid) if number is signal.SIGSTOP else os.kill(pid, number)


def _apis(url: str) -> list[int]:
    return _pids("-f", f"launch.py.*--port {url.rsplit(':', 1)[-1]} ")


def _pids(*query: str) -> list[int]:
    found = subprocess.run(["pgrep", *query], capture_output=True, text=True, check=False)
    return list(map(int, found.stdout.split()))
