"""A Docker daemon of the test's own, to be stopped, frozen and filled without harm to anybody else's containers."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import freeze

READY_SEC = 300.0


class OwnDaemon:
    """It lives in a network namespace of its own: in the machine's it would take the bridge of the machine's daemon."""

    def __init__(self, folder: Path, data_root: Path | None = None, flags: Sequence[str] = ()) -> None:
        self.folder = folder
        self._flags = flags
        self.data_root = data_root or folder / "data"
        self.host = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        dockerd = shutil.which("dockerd") or "/usr/sbin/dockerd"
        roots = [f"--data-root={self.data_root}", f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"]
        command = ["unshare", "--net", dockerd, *roots, f"--host={self.host}", *self._flags]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + READY_SEC
        while self._docker("version").returncode != 0:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"dockerd does not answer: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    @property
    def inside(self) -> tuple[str, ...]:
        """A command that enters the daemon's network namespace."""
        assert self._process is not None
        return "nsenter", f"--target={self._process.pid}", "--net"

    def stop(self) -> None:
        """As `systemctl stop docker`: its containers end with it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(READY_SEC)
            self._process = None

    def freeze(self) -> None:
        if self._process is not None:
            freeze(self._process.pid)

    def thaw(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)

    def load(self, image: str) -> None:
        """Copy an image of the machine's own daemon."""
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            loaded = self._docker("load", stdin=saved.stdout)
        if loaded.returncode != 0:
            raise RuntimeError(f"docker load: {loaded.stderr.decode()}")

    def _docker(self, *command: str, stdin=None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", "--host", self.host, *command], stdin=stdin, capture_output=True, check=False)


@contextmanager
def own_daemon(*images: str, flags: Sequence[str] = ()) -> Iterator[OwnDaemon]:
    """A running daemon with these images; all of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ht-dockerd-"))  # short: a socket's path has 108 bytes at most
    daemon = OwnDaemon(folder, flags=flags)
    try:
        daemon.start()
        for image in images:
            daemon.load(image)
        yield daemon
    finally:
        daemon.thaw()
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)
