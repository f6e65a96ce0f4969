"""The circuit breaker: trials wait while Docker is away, go on when it is back; the run stops when it stays away."""

import contextlib
import threading
from pathlib import Path

import pytest

from harbortrainer.docker.daemon import first_process


class Docker:
    def __init__(self) -> None:
        self.up = True
        self.asked = threading.Semaphore(0)

    def ping(self) -> str | None:
        self.asked.release()
        return None if self.up else "connection refused"


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
