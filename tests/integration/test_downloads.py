"""What an agent leaves in its container cannot write on this machine, nor hold up the trial, as it comes out."""

import asyncio
import os
import shlex
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harbortrainer.docker.box.environment import ComposeEnvironment, DockerEngineEnvironment
from tests.support.archives import leading_out
from tests.support.docker_parts import a_run, environment_of, up, write_task
from tests.support.shapes import PREBUILT

RUN = a_run("test-downloads")
pytestmark = pytest.mark.usefixtures("docker_ready")
MADE = (
    "mkdir -p /out/sub && cd /out && echo text > file && ln file again && ln -s /etc/passwd leak && "
    "ln -s sub inside && ln -P leak hard && mkfifo pipe && echo x > sub/left-out && echo y > sub/kept"
)
TAKEN = {"file": "text\n", "again": "text\n", "sub/kept": "y\n", "sub/left-out": "x\n"}


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[DockerEngineEnvironment]:
    async with up(write_task(tmp_path / "task"), RUN) as environment:
        yield environment


def read(folder: Path) -> dict[str, str]:
    """Texts by name, without links, of which none leads out."""
    found = [one for one in folder.rglob("*") if one.is_symlink() or not one.is_dir()]
    links = [one for one in found if one.is_symlink()]
    assert not any(os.readlink(one).startswith("/") or ".." in os.readlink(one).split("/") for one in links)
    return {str(one.relative_to(folder)): one.read_text() for one in found if one not in links}


async def test_an_archive_that_leads_out_is_not_asked_for(environment: DockerEngineEnvironment, tmp_path: Path) -> None:
    """The agent's tar prints the attack of CVE-2025-4517, which wrote files on this machine."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "old").write_text("mine")
    (tmp_path / "attack").write_bytes(leading_out("../outside"))
    await environment.upload_file(tmp_path / "attack", "/attack")
    replace = f"{MADE}; printf '#!/bin/sh\\ncat /attack\\n' > $(command -v tar) && tar -cf - . | cmp - /attack"
    assert (await environment.exec(replace, user="root")).return_code == 0
    await environment.download_dir("/out", tmp_path / "target")
    assert read(tmp_path / "outside") == {"old": "mine"}
    assert read(tmp_path / "target") == TAKEN
    with_patterns = environment.service_download_dir_with_exclusions
    await with_patterns(source_dir="/out", target_dir=tmp_path / "less", exclude=["left-*"])
    assert read(tmp_path / "less") == {name: text for name, text in TAKEN.items() if name != "sub/left-out"}


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("truncate -s 1T /out/hole", "/out in container .* is larger than 2,097,152 KiB"),
        ("mkdir -p $(printf 'd/%.0s' $(seq 1200))", "/out in container .* more than 128 deep"),
    ],
)
async def test_limits_end_a_download_soon(
    environment: DockerEngineEnvironment, made: str, why: str, tmp_path: Path
) -> None:
    made = shlex.quote(f"mkdir /out && cd /out && {made}")
    assert (await environment.exec(f"bash -c {made}", user="root")).return_code == 0
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=why):
        await environment.download_dir("/out", tmp_path / "back")
    assert time.monotonic() - started < 60
    await environment.download_dir("/etc/apt", tmp_path / "other")  # the daemon has let the container go
    assert read(tmp_path / "other")


async def test_services_of_compose(tmp_path: Path) -> None:
    service = f"image: {PREBUILT}\n    command: [sleep, infinity]\n"
    task = write_task(
        tmp_path / "composed",
        dockerfile=None,
        toml=f'[environment]\ndocker_image = "{PREBUILT}"\n',
        files={"environment/docker-compose.yaml": f"services:\n  main:\n    {service}  side:\n    {service}"},
    )
    environment = environment_of(task, RUN, kind=ComposeEnvironment)
    try:
        await environment.start(force_build=False)
        for name in (None, "side"):
            await environment.service_exec(f"{MADE}; echo {name} > name", service=name, user="root")
            target = tmp_path / f"of-{name}"
            await environment.service_download_dir("/out", target, service=name)
            await environment.service_download_file("/out/file", target / "one", service=name)
            await environment.service_download_dir_with_exclusions(
                source_dir="/out/sub", target_dir=target / "less", exclude=["left-*"], service=name
            )
            assert read(target) == {**TAKEN, "name": f"{name}\n", "one": "text\n", "less/kept": "y\n"}
        with pytest.raises(FileNotFoundError):
            await environment.download_file("/none", tmp_path / "none")
        await environment.stop_service("side")
        await environment.service_download_file("/out/name", tmp_path / "late", service="side")
        with pytest.raises(FileNotFoundError):
            await environment.service_download_file("/out/name", tmp_path / "late", service="other")
    finally:
        await asyncio.shield(environment.stop(delete=True))
    assert os.path.exists(tmp_path / "late")
