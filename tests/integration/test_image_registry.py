"""Images from a registry, `images=`, and other bases, `base_images=`: Debian's docker-registry and a real daemon."""

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker import APIClient
from docker.errors import APIError, ImageNotFound

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import builds, origins
from harbortrainer.docker.images import image as images
from harbortrainer.docker.images.inventory import image_ids, missing_images
from harbortrainer.docker.images.tmux_image import tmux_reference
from harbortrainer.errors import UserError
from tests.conftest import free_port
from tests.support.docker_parts import BASE, a_run, make_base, remove_run, up, write_task
from tests.support.task_folder import MIRROR

pytestmark = [
    pytest.mark.usefixtures("docker_ready"),
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="apt-get install docker-registry"),
]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    command = ["docker-registry", "serve", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while True:
            try:
                asked(port, "")
                break
            except urllib.error.URLError:
                assert process.poll() is None
        yield f"127.0.0.1:{port}/some/tasks"
        process.kill()
        origins.set_origins(None, None)


def asked(port: str | int, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/{path}") as answer:
        return json.load(answer)


def tags(registry: str) -> list[str]:
    return sorted(asked(registry.split("/")[0].split(":")[1], "some/tasks/tags/list")["tags"])


def forget_all(*names: str) -> None:
    images._ready.clear()
    for name in names:
        engine().remove_image(name, force=True)


async def test_what_one_machine_made_the_next_one_pulls(
    tmp_path: Path, registry: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = write_task(tmp_path / "one", dockerfile=f"{BASE}RUN date +%N > /made; echo {tmp_path}\n{MIRROR}")
    run, reference = a_run("registry"), images.task_reference(task / "environment")
    origins.set_origins(registry, None)
    try:
        (made,) = await images.images_of(task)
        assert made.fresh and made.base == reference
        await images.push_images()
        assert tags(registry)[0] == images.content_digest(task / "environment")
        assert [name.startswith("tmux-") for name in tags(registry)] == [False, True]
        before = [engine().inspect_image(name)["Id"] for name in (reference, made.reference)]
        assert made.reference == tmux_reference(before[0])
        forget_all(made.reference, reference)
        (again,) = await images.images_of(task)
        assert again == made and [engine().inspect_image(name)["Id"] for name in (reference, made.reference)] == before
        assert not [name for one in engine().images() for name in one["RepoTags"] or () if registry in name]
        async with up(task, run) as environment:
            assert (await environment.exec("cat /opt/calls")).stdout == "call\n"
        forget_all(again.reference, reference)
        origins.set_origins("127.0.0.1:9/gone/away", None)
        (here,) = await images.images_of(task)
        await images.push_images()
        assert here.fresh and engine().inspect_image(reference)["Id"] != before[0]
        assert len([one for one in caplog.messages if "images=127.0.0.1:9/gone/away: " in one]) == 1
    finally:
        remove_run(run)
        forget_all(*reversed(image_ids([task])))


async def test_what_was_here_before_the_registry_is_pushed(tmp_path: Path, registry: str) -> None:
    task = write_task(tmp_path / "one", dockerfile=f"{BASE}RUN echo {tmp_path}\n")
    (made,) = await images.images_of(task)
    try:
        images._ready.clear()
        origins.set_origins(registry, None)
        assert not (await images.images_of(task))[0].fresh
        await images.push_images()
        assert len(tags(registry)) == 1
    finally:
        forget_all(made.reference)


async def test_what_was_made_while_the_registry_was_away_is_pushed_with_the_next_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: str
) -> None:
    """The registry is away for one image; a second one is removed before it is pushed."""
    tasks = [write_task(tmp_path / name, dockerfile=f"{BASE}RUN echo {tmp_path}/{name}\n") for name in "abc"]
    references = [images.task_reference(task / "environment") for task in tasks]
    origins.set_origins(registry, None)
    try:
        for task, reference in zip(tasks, references, strict=True):
            with monkeypatch.context() as away:
                if reference != references[2]:
                    away.setattr(APIClient, "push", refuse)
                await images.images_of(task)
                await images.push_images()
            if reference == references[1]:
                forget_all(reference)
        digests = [images.content_digest(task / "environment") for task in tasks]
        assert tags(registry) == sorted([digests[0], digests[2]])
    finally:
        forget_all(references[0], references[2])


def refuse(_: APIClient, name: str, **__: bool) -> None:
    raise APIError(f"{name}: dial tcp 127.0.0.1: connect: connection refused")


async def test_an_image_on_a_base_made_here_is_pulled_where_that_base_is_missing(tmp_path: Path, registry: str) -> None:
    base, marks = "harbortrainer-test-shared-base:latest", list[str]()
    task = write_task(tmp_path / "one", dockerfile=f"FROM {base}\nRUN echo {tmp_path}\n")

    async def image(mark: str) -> str:
        """The mark of the base that the task's image has; "" = this machine has no base."""
        builds._made_here.cache_clear()
        with contextlib.suppress(ImageNotFound):
            engine().remove_image(base, force=True)
        if mark:
            make_base(base, tmp_path / "base", mark)
        (made,) = await images.images_of(task)
        await images.push_images()
        found = engine().inspect_image(made.base or made.reference)["Config"]["Env"]
        forget_all(made.reference, *filter(None, [made.base]))
        return next(one.removeprefix("MARK=") for one in found if one.startswith("MARK="))

    origins.set_origins(registry, None)
    for mark in ("a", "a", "", "b", ""):
        marks.append(await image(mark))
    assert marks == ["a", "a", "a", "b", "b"]


async def test_bases_stand_for_those_that_are_not_to_be_had(tmp_path: Path) -> None:
    text = f"FROM nowhere.invalid/ubuntu:24 AS first\nRUN echo {tmp_path} > /made\nfrom  mirrored/bookworm\n"
    task = write_task(tmp_path / "one", dockerfile=f"{text}COPY --from=first /made /made\nCOPY . /all\n")
    before = images.task_reference(task / "environment")
    file = tmp_path / "bases.txt"
    file.write_text("# ours\nnowhere.invalid/ubuntu:24 harbortrainer/base:bookworm\nmirrored/* harbortrainer/base:*\n")
    origins.set_origins(None, str(file))
    try:
        reference = images.task_reference(task / "environment")
        assert reference != before and missing_images([task]) == {task: "to build"}
        (made,) = await images.images_of(task)
        assert made.reference == reference and missing_images([task]) == {task: ""}
        origins.set_origins(None, None)
        assert images.task_reference(task / "environment") == before and missing_images([task]) == {task: "to build"}
    finally:
        origins.set_origins(None, str(file))
        forget_all(images.task_reference(task / "environment"))
        origins.set_origins(None, None)


@pytest.mark.parametrize("name", ["https://x/y", "x", "x.example/a:latest"])
def test_wrong_settings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"images={name}: give REGISTRY/PREFIX without a tag"):
        origins.set_origins(name, None)
    with pytest.raises(UserError, match=r"base_images=.*cannot be read"):
        origins.set_origins(None, str(tmp_path / "none"))
    (tmp_path / "bad").write_text("one\n")
    with pytest.raises(UserError, match=r"base_images=.*bad: one: a line is"):
        origins.set_origins(None, str(tmp_path / "bad"))
