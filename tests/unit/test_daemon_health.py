"""The circuit breaker: trials wait while Docker is away, go on when it is back; the run stops when it stays away."""

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from harbortrainer.docker.daemon import Daemon, first_process, ping_docker
from harbortrainer.errors import EnvironmentFault


class Docker:
    def __init__(self) -> None:
        self.up = True
        self.asked = threading.Semaphore(0)

    def ping(self) -> str | None:
        self.asked.release()
        return None if self.up else "connection refused"


async def test_trials_wait_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    docker = Docker()
    daemon = Daemon(60.0, docker.ping)
    await daemon.suspect()
    await daemon.ready()
    assert daemon.outages == 0
    docker.up = False
    await asyncio.gather(*(daemon.suspect() for _ in range(5)))
    assert daemon.outages == 1, "five trials were hit by one outage"
    waiting = [asyncio.create_task(daemon.ready()) for _ in range(3)]
    for _ in range(5):
        await asyncio.to_thread(docker.asked.acquire)
    assert not any(task.done() for task in waiting)
    docker.up = True
    await asyncio.gather(*waiting)
    assert "Docker does not answer (connection refused)" in caplog.text and "Docker is back" in caplog.text
    docker.up = False
    await daemon.suspect()
    assert daemon.outages == 2
    daemon.close()


async def test_a_daemon_that_stays_away_stops_the_run() -> None:
    docker = Docker()
    docker.up = False
    daemon = Daemon(0.02, docker.ping)
    await daemon.suspect()
    for _ in range(2):  # everybody who waits is told, and whoever comes later
        with pytest.raises(EnvironmentFault, match=r"did not answer for 0.02 s \(connection refused\): start it"):
            await daemon.ready()


def test_the_ping_tells_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "No such file" in (ping_docker() or "")


@pytest.mark.parametrize(("mounted", "known"), [("holder", True), ("other", False)])
def test_a_process_is_known_by_the_files_that_docker_mounts_for_its_network(
    mounted: str, known: bool, tmp_path: Path
) -> None:
    """Its container's own ID is in no mount where it shares another's network and control groups are of version 2."""
    (tmp_path / "7").mkdir()
    files = f"/var/lib/docker/containers/{mounted}/hostname"
    (tmp_path / "7" / "mountinfo").write_text(f"1 2 254:0 {files} /etc/hostname rw - ext4 /dev/vda rw\n")
    inspected = {
        "Id": "own", "State": {"Pid": 7}, "HostnamePath": "/var/lib/docker/containers/holder/hostname",
    }  # fmt: skip
    with contextlib.nullcontext() if known else pytest.raises(FileNotFoundError):
        assert first_process(inspected, tmp_path) == 7
