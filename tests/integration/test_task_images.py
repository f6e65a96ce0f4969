"""Images that tasks name and the registry does not give; images without tmux."""

import asyncio
from pathlib import Path

import pytest

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import image as images
from harbortrainer.docker.images.inventory import image_ids, missing_images, needs_note
from harbortrainer.docker.keeping import ownership
from tests.support.docker_parts import BASE, a_run, prepare_images, remove_run, up, write_task
from tests.support.task_folder import MIRROR

pytestmark = pytest.mark.usefixtures("docker_ready")
NOWHERE = "registry.invalid/made/up:1"  # a name that no server has
NAMED = f'[environment]\ndocker_image = "{NOWHERE}"\n'


async def test_an_image_that_cannot_be_pulled_is_built_from_its_dockerfile(tmp_path: Path) -> None:
    run, lines = a_run("fallback"), list[str]()
    task = write_task(tmp_path / "named", dockerfile=f"{BASE}ENV MARK={tmp_path}\n", toml=NAMED)
    bare = write_task(tmp_path / "bare", dockerfile=None, toml=NAMED)
    assert [*missing_images([task, bare]).values()] == ["to pull", "to pull"]
    assert needs_note([task, bare], 1, 1)[0] == "tasks whose images are missing here: 2 to pull (named, bare)"
    with pytest.raises(images.ImageError, match=f"^cannot pull image {NOWHERE}: [^\n]*$"):
        await prepare_images([bare])
    with pytest.raises(images.ImageError, match=f"^cannot pull image {NOWHERE}: [^\n]*$"):
        await prepare_images([task], prebuilt_only=True)
    reference = images.task_reference(task / "environment")
    try:
        assert await prepare_images([task], run, lines.append) == 1
        (line,) = lines
        assert line.startswith("task named: its image is built from its Dockerfile, not pulled: ")
        assert NOWHERE in line and line.endswith("environment_kwargs.prebuilt_only=true")
        async with up(task, run) as environment:
            assert (await environment.exec("echo $MARK")).stdout == f"{tmp_path}\n"
        assert missing_images([task]) == {task: ""} and list(image_ids([task])) == [reference]
        images._ready.clear()  # as in the next process, which asks no registry
        lines.clear()
        assert await prepare_images([task], run, lines.append) == 0
        assert "image registry.invalid/made/up:1 is not here; to insist" in lines[0]
        with pytest.raises(images.ImageError, match="cannot pull image"):
            async with up(task, run, prebuilt_only=True):
                pass
    finally:
        remove_run(run)
        engine().remove_image(reference)


async def test_tmux_is_added_to_an_image_once(tmp_path: Path) -> None:
    run = a_run("tmux")
    own = f"ENV MARK={tmp_path}\nWORKDIR /work\nCMD sleep 1\nHEALTHCHECK --interval=100ms CMD true\nUSER nobody\n"
    task = write_task(tmp_path / "bare", dockerfile=f"{BASE}{MIRROR}{own}")
    reference = images.task_reference(task / "environment")
    try:
        assert await prepare_images([task], run_id=run) == 1
        names = list(image_ids([task]))
        base, made = (engine().inspect_image(name) for name in names)
        assert names[0] == reference and made["Parent"] and made["RepoTags"] == [names[1]]
        assert made["Config"]["Labels"][ownership.BUILT_FOR] == run
        differing = {key for key in made["Config"] if made["Config"][key] != base["Config"][key]}
        assert differing <= {"Image", "Labels", "Hostname"}
        for _ in range(2):
            async with up(task, run) as environment:
                found = await environment.exec("tmux -V && whoami && pwd && cat /opt/calls")
            assert (found.stdout or "").split()[2:] == ["nobody", "/work", "call"]
        images._ready.clear()
        assert await prepare_images([task]) == 0
        assert dict.fromkeys(names[1:], made["Id"]) == {name: image_ids([task])[name] for name in names[1:]}
    finally:
        remove_run(run)
        for name in list(image_ids([task]))[::-1]:
            engine().remove_image(name)


@pytest.mark.nightly
async def test_where_tmux_cannot_be_installed_trials_start_without_it(tmp_path: Path) -> None:
    run, lines = a_run("no-tmux"), list[str]()
    task = write_task(tmp_path / "none", dockerfile=f"{BASE}RUN rm /usr/bin/tmux /usr/bin/apt-get # {tmp_path}\n")
    try:
        await prepare_images([task], run, lines.append)
        assert len(lines) == 1 and lines[0].startswith(
            "task none: its image stays without tmux, which each trial of Terminus-2"
        )
        assert "no package manager" in lines[0]
        async with up(task, run) as environment:
            assert (await environment.exec("tmux -V")).return_code == 127
        image = await images.task_image(task / "environment", None)
        assert image.reference == images.task_reference(task / "environment") and image.no_tmux
    finally:
        remove_run(run)
        await asyncio.to_thread(engine().remove_image, images.task_reference(task / "environment"))
