"""Hosts that are refused or fail, what they leave behind, folders that travel, and what hosts cannot do."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chz
import pytest
from docker.errors import DockerException

from harbortrainer.backend.contract import CLOUD, TINKER_DOCUMENTS
from harbortrainer.backend.terms import agree
from harbortrainer.bundled.hosts.facts import code, refuse_different
from harbortrainer.bundled.hosts.messages import Job, MachineFacts, pack_folder, unpack_folder
from harbortrainer.bundled.hosts.node import Node
from harbortrainer.bundled.hosts.remote import RemoteHost
from harbortrainer.cli.arguments import validate
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.rollout.venue import RunParts
from tests.support.fakes import chat_template
from tests.support.hosts_rig import FACTS, SILENCE, Rig, Room, Venue, Wire, now, virtually


@dataclass(frozen=True)
class Broken(Venue):
    """Its rooms fail when they are prepared, or when they clean up."""

    at_start: Exception | None = None
    at_end: Exception | None = None

    def room(self, run: RunParts) -> Room:
        made: Any = super().room(run)
        made.prepared = self.prepared
        return made

    @contextlib.asynccontextmanager
    async def prepared(self, *_: Any) -> AsyncIterator[None]:
        if self.at_start is not None:
            raise self.at_start
        yield
        if self.at_end is not None:
            raise self.at_end


def job_at(rig: Rig, venue: Venue) -> Job:
    return Job(rig.config, "run", venue, lambda _: chat_template(), 4, False, SILENCE)


def test_other_code_and_a_shared_daemon_are_refused() -> None:
    same = MachineFacts(("id", "/a"), "20", code())
    refuse_different("h1", same, [("h0", MachineFacts(("id", "/b"), "20", code()))])
    with pytest.raises(UserError, match=r"host h1: harbortrainer x, here .*; check out the same commit"):
        refuse_different("h1", MachineFacts(("id", "/a"), "20", code() | {"harbortrainer": "x"}), [])
    with pytest.raises(UserError, match="host h1: shares the Docker daemon of host h0"):
        refuse_different("h1", same, [("h0", same)])


def test_a_changed_script_of_the_package_is_other_code(tmp_path: Path) -> None:
    """terminal.sh decides how long a command is waited for."""
    for name, text in (("a", "set -f\n"), ("b", "set +f\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "terminal.sh").write_text(text)
    assert code(tmp_path / "a")["harbortrainer"] != code(tmp_path / "b")["harbortrainer"]


@virtually
async def test_a_host_whose_clean_up_fails_leaves_all_the_same(tmp_path: Path) -> None:
    """Its process would stay for ever; what waits beside it cleans once that is dead."""
    rig = Rig(tmp_path)
    job = job_at(rig, Broken(at_end=RuntimeError("no clean-up")))
    node = Node(job, lambda: rig.left.append(now()), lambda: FACTS, lambda _: None)
    await node.start()
    await node.prepare()
    await node.poll(now())
    await asyncio.sleep(2 * SILENCE)
    assert rig.left == [pytest.approx(SILENCE)]


@virtually
async def test_a_daemon_that_fails_while_a_host_joins_is_that_hosts_fault(tmp_path: Path) -> None:
    """Named in one line, and no error of the whole run."""
    rig = Rig(tmp_path)
    job = job_at(rig, Broken(at_start=DockerException("connection\nrefused")))
    node = Node(job, lambda: None, lambda: FACTS, lambda _: None)
    host = RemoteHost("h0", Wire(node), 4, rig.run, SILENCE, lambda _: None)
    await host.start()
    with pytest.raises(UserError, match=r"^host h0: Docker failed \(connection refused\); see whether it runs"):
        await host.ask("prepare")
    await host.close()


def test_a_killed_process_is_cleaned_up_after(tmp_path: Path) -> None:
    """Its folder too; what it leaves in Docker is the nightly tests' matter."""
    folder = tmp_path / "host"
    folder.mkdir()
    code = (
        "import pathlib, sys, time; from harbortrainer.bundled.hosts import afterwards; afterwards.LOOK_SEC = 0.05\n"
        "afterwards.clean_afterwards(pathlib.Path(sys.argv[1])); print('ready', flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none", "PYTHONPATH": str(Path("src").resolve())}
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.kill()
    deadline = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_container_cannot_reach_out_of_its_trials_folder(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "link").symlink_to("/etc")
    (tmp_path / "trial" / "log").write_text("ran")
    packed = pack_folder(tmp_path / "trial")
    unpack_folder(packed, tmp_path / "there", trusted=False)
    assert [path.name for path in (tmp_path / "there" / "trial").iterdir()] == ["log"]
    unpack_folder(packed, tmp_path / "task", trusted=True)
    assert (tmp_path / "task" / "trial" / "link").readlink() == Path("/etc")


def test_a_task_arrives_with_the_modes_of_its_files(tmp_path: Path) -> None:
    """They are part of what its image is named by."""
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "run.sh").touch()
    (tmp_path / "task" / "run.sh").chmod(0o777)
    unpack_folder(pack_folder(tmp_path / "task"), tmp_path / "there", trusted=True)
    assert (tmp_path / "there" / "task" / "run.sh").stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"environment_type": "daytona"},
            "environment_type=daytona: a sandbox service needs no hosts; leave hosts out",
        ),
        ({"max_steps_off_policy": 1}, "max_steps_off_policy=1: hosts sample the weights published last and no others"),
        (
            {"backend": "skyrl-tx", "skyrl_tx_url": "http://localhost:8000"},
            "skyrl_tx_url=http://localhost:8000: with hosts give an address of the server that every host reaches",
        ),
    ],
)
def test_what_hosts_cannot_do_is_refused(changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"model_name": "m", "tasks_dir": "."}
    plain = Config(**given | changes)
    validate(plain)
    with pytest.raises(UserError) as refused:
        validate(chz.replace(plain, hosts="ray"))
    assert str(refused.value).startswith(words)


def test_a_server_whose_samplers_are_not_frozen_is_refused() -> None:
    config = Config(model_name="m", tasks_dir=".", hosts="ray")
    agree(config, CLOUD, TINKER_DOCUMENTS)
    with pytest.raises(UserError, match=r"hosts=ray: .* may change the weights in training"):
        agree(config, CLOUD, replace(TINKER_DOCUMENTS, frozen_samplers=False))
