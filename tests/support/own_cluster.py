"""A Ray cluster of the test's own: a network namespace for the head, and one with a dockerd for each of its hosts."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import ROOT
from tests.support.own_daemon import READY_SEC
from tests.support.processes import cpu_seconds

NETWORK = "10.77.0"


class OwnHost:
    """Network namespace, dockerd and Ray node of one machine."""

    def __init__(self, cluster: "OwnCluster", letter: str, number: int, places: int) -> None:
        self._cluster, self.letter, self.places = cluster, letter, places
        self.space, self.address = f"{cluster.prefix}{letter}", f"{NETWORK}.{number}"
        self.folder = cluster.folder / letter
        self.docker = f"unix://{self.folder}/d.sock"
        self.docker_tcp = f"tcp://{self.address}:2375"
        self._dockerd: subprocess.Popen[bytes] | None = None

    def start_docker(self, *images: str) -> None:
        """Returns when it answers and has the images."""
        folder = self.folder
        folder.mkdir()
        roots = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
        hosts = [f"--host={self.docker}", f"--host={self.docker_tcp}", "--tls=false"]  # said, or dockerd waits
        command = [*self._cluster.inside(self.space), "dockerd", *roots, *hosts]
        with (folder / "log").open("ab") as log:
            self._dockerd = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + READY_SEC
        while self._docker("version").returncode != 0:
            if time.monotonic() > deadline or self._dockerd.poll() is not None:
                raise RuntimeError(f"dockerd does not answer: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        for image in images:
            with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
                assert self._docker("load", stdin=saved.stdout).returncode == 0

    def start_node(self) -> None:
        start = [str(ROOT / "scripts" / "start_host.sh"), self._cluster.head_address, "--places", str(self.places)]
        self._cluster.ray_start(self.space, self.address, start, self.letter, {"DOCKER_HOST": self.docker})

    def containers(self) -> int:
        """Those of trials, running or not."""
        return len(self._docker("ps", "-aq", "--filter", "label=harbortrainer.trial").stdout.split())

    def processes(self, word: str) -> list[int]:
        """Processes in the namespace whose command line has the word."""
        pids = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True, check=True).stdout
        return [int(pid) for pid in pids.split() if word in _command(int(pid))]

    def cpu_seconds(self, word: str) -> float:
        """CPU time so far of the `processes` with the word."""
        return sum(map(cpu_seconds, self.processes(word)))

    def cut(self) -> None:
        """Its packets are dropped: no reset, no loss of carrier."""
        self._cluster.port(self.letter, 0)

    def heal(self) -> None:
        self._cluster.port(self.letter, 3)

    def stop(self) -> None:
        if self._dockerd is not None:
            self._dockerd.terminate()
            self._dockerd.wait(READY_SEC)

    def _docker(self, *command: str, stdin=None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["docker", "--host", self.docker, *command], stdin=stdin, capture_output=True, check=False
        )


class OwnCluster:
    """A head, whose namespace the driver shares, and hosts. Everything is ended by its process ID."""

    def __init__(self, folder: Path, venv: Path, places: Sequence[int]) -> None:
        self.folder, self.venv = folder, venv
        self.prefix = f"ht{os.getpid() % 100000}"
        self.head = f"{self.prefix}h"
        self.head_address = f"{NETWORK}.1"
        self.hosts = [OwnHost(self, "abcdef"[n], n + 2, places[n]) for n in range(len(places))]
        self.environment = {
            **os.environ,
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_PORT": "26379",
            "SKYRL_TX_API_KEY": "tml-a-key-for-tests-of-hosts",
            "VENV": str(venv),
        }
        self._drivers: list[subprocess.Popen[str]] = []

    def open(self) -> None:
        _ip("netns", "add", self.head)
        _ip("-n", self.head, "link", "set", "lo", "up")
        _ip("-n", self.head, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.head, "addr", "add", f"{self.head_address}/24", "dev", "br0")
        _ip("-n", self.head, "link", "set", "br0", "up")
        for host in self.hosts:
            _ip("netns", "add", host.space)
            _ip("-n", host.space, "link", "set", "lo", "up")
            peer = ("peer", "name", "eth0", "netns", host.space)
            _ip("-n", self.head, "link", "add", f"v{host.letter}", "type", "veth", *peer)
            _ip("-n", self.head, "link", "set", f"v{host.letter}", "master", "br0", "up")
            _ip("-n", host.space, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.space, "link", "set", "eth0", "up")

    def start_head(self) -> None:
        start = [str(ROOT / "scripts" / "start_host.sh"), "--head"]
        self.ray_start(self.head, self.head_address, start, "h", {})

    def ray_start(self, space: str, address: str, start: Sequence[str], letter: str, extra: dict[str, str]) -> None:
        options = ["--", "--node-ip-address", address, "--num-cpus", "1", "--temp-dir", str(self.folder / f"r{letter}")]
        command = [*self.inside(space), *start, *options]
        environment = self.environment | extra
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT
        )
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]

    def inside(self, space: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{space}"]

    def port(self, letter: str, state: int) -> None:
        """Of the bridge: 0 = drops all packets, 3 = forwards."""
        command = [*self.inside(self.head), "bridge", "link", "set", "dev", f"v{letter}", "state", str(state)]
        subprocess.run(command, env=self.environment, check=True)

    def driver(self, given: Mapping[str, object], **environment: str) -> subprocess.Popen[str]:
        """tests.support.hosts_parts, beside the head."""
        command = [*self.inside(self.head), str(self.venv / "bin" / "python"), "-m", "tests.support.hosts_parts"]
        log = (self.folder / "driver.log").open("ab")
        process = subprocess.Popen(
            [*command, json.dumps(given)],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
        )
        log.close()
        self._drivers.append(process)
        return process

    def close(self) -> None:
        for driver in self._drivers:
            if driver.poll() is None:
                driver.kill()
            driver.wait()
            if driver.stdout is not None:
                driver.stdout.close()
        for letter in ("h", *(host.letter for host in self.hosts)):
            self._end_ray(str(self.folder / f"r{letter}"))
        for host in self.hosts:
            host.stop()
        for space in (self.head, *(host.space for host in self.hosts)):
            subprocess.run(["ip", "netns", "del", space], env=self.environment, check=False)

    def _end_ray(self, folder: str) -> None:
        """All processes of one node: they name its folder. SIGTERM would leave some of them for long."""
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and int(path.name) != os.getpid() and _of_node(int(path.name), folder):
                try:
                    os.kill(int(path.name), signal.SIGKILL)
                except ProcessLookupError:
                    continue


def _of_node(pid: int, folder: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return folder in _command(pid) or f"={folder}/".encode() in environment


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})


@contextmanager
def own_cluster(venv: Path, *images: str, places: Sequence[int] = (4, 4)) -> Iterator[OwnCluster]:
    """A running cluster whose hosts have these images; all of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ht-ray-", dir="/tmp"))  # short: a socket's path has 108 bytes at most
    cluster = OwnCluster(folder, venv, places)
    try:
        cluster.open()
        for host in cluster.hosts:
            host.start_docker(*images)
        cluster.start_head()
        for host in cluster.hosts:
            host.start_node()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
