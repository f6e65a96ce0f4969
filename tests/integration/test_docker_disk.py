"""Docker's disk: a policy that fills it is ended alone; `doctor clean` takes what nobody needs and nothing else."""

import asyncio
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from harbortrainer.cli.main import main
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.keeping import cleaning, disk_guard, ownership
from harbortrainer.docker.keeping.cleaning import drain
from harbortrainer.docker.keeping.disk_guard import eviction_reason, guarding_disk
from harbortrainer.docker.network.bridge import NAME
from harbortrainer.durable.process import PID
from tests.support.docker_parts import containers, environment_of, run_trial, write_task
from tests.support.own_daemon import OwnDaemon
from tests.support.small_disk import daemon_on_small_disk

RUN = "test-disk"
PREBUILT = '[environment]\ndocker_image = "harbortrainer/base:bookworm"\n'
# not faster than a guard can look on a slow machine
FILL = "i=0; while i=$((i+1)); do head -c 4M /dev/zero > /fill$i || exit 9; sleep 0.2; done"
GO_ON = "while [ ! -e /stop ]; do head -c 1M /dev/zero > /mine || exit 9; sync /mine; sleep 0.05; done"


@pytest.fixture(scope="module")
def small_disk(docker_ready: str) -> Iterator[OwnDaemon]:
    with daemon_on_small_disk(docker_ready, mib=512) as daemon:
        yield daemon


@pytest.fixture
def small_docker(small_disk: OwnDaemon, monkeypatch: pytest.MonkeyPatch) -> OwnDaemon:
    monkeypatch.setenv("DOCKER_HOST", small_disk.host)
    return small_disk


async def test_who_fills_the_disk_is_ended_alone(
    small_docker: OwnDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_guard, "EVERY_SEC", 0.1)
    filler = write_task(tmp_path / "filler", dockerfile=None, toml=PREBUILT, solve=FILL)
    neighbour = environment_of(write_task(tmp_path / "neighbour", dockerfile=None, toml=PREBUILT), RUN)
    await neighbour.start(force_build=False)
    try:
        with guarding_disk(RUN):
            going_on = asyncio.create_task(neighbour.exec(GO_ON))
            ended = await run_trial(filler, RUN)
            assert "its container had written" in eviction_reason(ended.trial_name) and not eviction_reason("neighbour")
            assert ended.exception_info is not None and ended.verifier_result is None  # not a failure of the policy's
            async with asyncio.timeout(600):
                while len(containers(RUN)) > 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert (await neighbour.exec("head -c 64M /dev/zero > /more && touch /stop")).return_code == 0
            assert (await going_on).return_code == 0
    finally:
        await neighbour.stop(delete=True)
        await drain()


def _image(name: str, **labels: str) -> str:
    dockerfile = io.BytesIO(f"FROM harbortrainer/base:bookworm\nRUN head -c 1M /dev/zero > /{name}\n".encode())
    tag = f"harbortrainer/task:{name}"
    list(engine().build(fileobj=dockerfile, tag=tag, rm=True, labels=labels))
    return tag


def _names() -> set[str]:
    """All that is on the daemon, whoever made it."""
    client = engine()
    names = {container["Names"][0] for container in client.containers(all=True)}
    names |= {network["Name"] for network in client.networks()}
    names |= {volume["Name"] for volume in client.volumes()["Volumes"] or ()}
    return names | {tag for image in client.images() for tag in image["RepoTags"] or ()}


def _make_things(kind: str, labels: dict[str, str]) -> set[str]:
    client = engine()
    client.create_container("harbortrainer/base:bookworm", "true", name=f"{kind}-container", labels=labels)
    client.create_network(f"{kind}-network", labels=labels)
    client.create_volume(f"{kind}-volume", labels=labels)
    return {f"/{kind}-container", f"{kind}-network", f"{kind}-volume"}


def test_clean_lists_first_and_takes_only_what_is_ours_and_dead(
    small_docker: OwnDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    mine, shared = ownership.labels("r"), {ownership.LABEL: "1"}
    dead = _make_things("dead", mine | {PID: f"{os.getpid()}:1"})
    kept = _make_things("mine", mine) | _make_things("strange", {PID: f"{os.getpid()}:1"})
    unused, held, in_use = (_image(name, **shared) for name in ("unused", "held", "in-use"))
    second = int(time.time()) + 1.0  # Docker lists whole seconds
    while time.time() < second:
        time.sleep(0.01)
    in_a_month = second + 30 * 86400.0
    kept |= {held, in_use, _image("new", **shared), _image("foreign")}
    engine().create_container(held, "true", name="holder")
    engine().tag(in_use, "harbortrainer/task", "in-use")
    monkeypatch.setattr(cleaning, "time", SimpleNamespace(time=lambda: in_a_month))
    before = _names()
    assert main(["doctor", "clean", "json=found.json"]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    names = {thing["name"].removesuffix("-container") for thing in found} - {NAME}  # the trials' network, if unused
    assert names == {"dead", "dead-network", "dead-volume", unused}
    assert "add remove=true" in capsys.readouterr().out and _names() == before
    assert main(["doctor", "clean", "remove=true"]) == 0
    assert before - _names() - {NAME} == dead | {unused} and kept <= _names()
    assert main(["doctor", "clean"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
