"""The runtime of containers on daemons that offer crun: one that works (runc under that name), one that fails."""

import logging
import shutil
from pathlib import Path

import pytest

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.keeping.cleaning import drain
from tests.support.docker_parts import a_run, containers, started, write_task
from tests.support.own_daemon import own_daemon

RUN = a_run("test-runtime")


@pytest.mark.parametrize(
    ("program", "runtime", "line"),
    [("runc", "crun", "containers start with crun"), ("false", "runc", "crun fails, so the daemon's default runtime")],
    ids=["works", "fails"],
)
async def test_crun_is_used_where_it_works(
    docker_ready: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
    runtime: str,
    line: str,
) -> None:
    caplog.set_level(logging.INFO, "harbortrainer")
    path = shutil.which(program) or f"/usr/sbin/{program}"
    with own_daemon(docker_ready, flags=[f"--add-runtime=crun={path}"]) as daemon:
        monkeypatch.setenv("DOCKER_HOST", daemon.host)
        async with started(write_task(tmp_path / "task"), RUN) as environment:
            (container,) = containers(RUN)
            assert engine().inspect_container(container)["HostConfig"]["Runtime"] == runtime
            assert (await environment.exec("echo up")).stdout == "up\n"
        await drain()
        assert line in caplog.text
        assert [one["Names"] for one in engine().containers(all=True)] == []
