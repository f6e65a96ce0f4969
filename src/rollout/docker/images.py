"""Images of tasks: built or pulled once a content digest, however many trials ask for them at once."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import APIError, ImageNotFound
from docker.errors import BuildError as DockerBuildError
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition

from src.daemon_thread import in_daemon_thread
from src.errors import UserError
from src.rollout.docker import owner
from src.rollout.docker.build_leftovers import noting_layers, sweeping
from src.rollout.docker.buildkit import build_with_cli, buildkit_feature
from src.rollout.docker.context import content_digest
from src.rollout.docker.engine import engine
from src.rollout.docker.image_uses import note_use

_LOG_TAIL_LINES = 20
N_PARALLEL_BUILDS = 2
_log = logging.getLogger(__name__)
_under_way: dict[str, asyncio.Task["Image"]] = {}
_ready: dict[str, "Image"] = {}


class ImageError(RuntimeError):
    """An image could not be built or pulled: the task's fault, or the registry's. Retrying rarely helps."""


@dataclass(frozen=True, slots=True)
class Image:
    reference: str
    user: str  # "" = root
    workdir: str
    entrypoint: tuple[str, ...]
    healthcheck: bool
    fresh: bool = False  # built or pulled by this process


async def task_image(
    environment_dir: Path,
    docker_image: str | None,
    *,
    force: bool = False,
    run_id: str = "",
    limit_sec: float | None = None,
) -> Image:
    """The image of a task: `docker_image` pulled if it is not here, or `environment_dir` built if its content is new.

    `force` builds even when an image of this content is here, once a process. `run_id` is noted on what is built.
    `limit_sec`: seconds for it; None = no limit. Raises ImageError.
    """
    if docker_image is None:
        digest = await asyncio.to_thread(content_digest, environment_dir)
        reference = _reference(digest)
    else:
        digest, reference = "", docker_image
    if docker_image is None:
        note_use(reference)
    if reference in _ready:
        return _ready[reference]

    def produce(stop: threading.Event) -> Image:
        fresh = force or not is_here(reference)
        if fresh and docker_image is not None:
            _pull(reference, stop)
        elif fresh:
            _build(environment_dir, reference, owner.image_labels(digest, run_id), stop)
            _refuse_changed(environment_dir, digest, reference)
        return _inspect(reference, fresh)

    return await _shared(reference, produce, limit_sec)


async def prepare_images(
    task_dirs: Sequence[Path],
    parallel: int = N_PARALLEL_BUILDS,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    run_id: str = "",
) -> int:
    """Build or pull the images of tasks before the first trial, `parallel` at a time; how many were not here yet.

    `progress` gets an image's name, how many are done and how many there are. Tasks with a compose file are Harbor's
    to build. Raises UserError naming each task whose image cannot be had (or not within its `build_timeout_sec`), with
    the end of its log.
    """
    wanted = {source: (task, limit_sec) for task in task_dirs for source, limit_sec in _sources(task)}
    images: list[Image] = []
    faults: list[str] = []
    limit = asyncio.Semaphore(parallel)

    async def prepare(environment_dir: Path, docker_image: str | None) -> None:
        task, limit_sec = wanted[environment_dir, docker_image]
        try:
            async with limit:
                images.append(await task_image(environment_dir, docker_image, run_id=run_id, limit_sec=limit_sec))
        except ImageError as error:
            faults.append(f"task {task.name}: {error}")
        if progress:
            progress(docker_image or environment_dir.parent.name, len(images) + len(faults), len(wanted))

    before = set(_ready)
    await asyncio.gather(*(prepare(*source) for source in wanted))
    if faults:
        raise UserError("\n".join(sorted(faults)))
    return len({image.reference for image in images if image.fresh} - before)


def _sources(task_dir: Path) -> Iterator[tuple[tuple[Path, str | None], float]]:
    """What the containers of a task and of its verifiers are made from: (folder, prebuilt image), seconds."""
    task = Task(task_dir, disable_verification=True)
    definitions = [(task.paths.environment_dir, task.config.environment)]
    for step in task.config.steps or [None]:
        if definition := resolve_verifier_environment_definition(task.config, task.paths, step):
            definitions.append((definition.directory, definition.config))
    for folder, config in definitions:
        built = (folder / "Dockerfile").exists() and not (folder / "docker-compose.yaml").exists()
        if config.docker_image or built:
            yield (folder, config.docker_image), config.build_timeout_sec


def forget(image: Image) -> None:
    """Look again for an image that somebody removed under us."""
    _ready.pop(image.reference, None)


async def _shared(reference: str, produce: Callable[[threading.Event], Image], limit_sec: float | None) -> Image:
    """Run `produce` in a builder thread, once for everyone who asks for `reference` meanwhile."""
    task = _under_way.get(reference)
    if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
        task = asyncio.create_task(_in_thread(produce, limit_sec), name=f"image {reference}")
        _under_way[reference] = task
    image = await asyncio.shield(task)
    _ready[reference] = image
    return image


async def _in_thread(produce: Callable[[threading.Event], Image], limit_sec: float | None) -> Image:
    stop = threading.Event()
    try:
        async with asyncio.timeout(limit_sec):
            return await in_daemon_thread(produce, stop)
    except TimeoutError as error:
        limit = f"{limit_sec:g} s ([environment] build_timeout_sec in its task.toml)"
        raise ImageError(f"its image was not there within {limit}") from error
    finally:
        stop.set()  # cancelled or late: a build by the CLI ends now, another at its next line of output


def task_reference(environment_dir: Path) -> str:
    """The name of the image that is, or would be, built from a folder. Blocking."""
    return _reference(content_digest(environment_dir))


def _reference(digest: str) -> str:
    return f"harbortrainer/task:{digest[:12]}"


def is_here(reference: str) -> bool:
    try:
        engine().inspect_image(reference)
    except ImageNotFound:
        return False
    return True


def _inspect(reference: str, fresh: bool) -> Image:
    attributes = engine().inspect_image(reference)
    if attributes["Os"] != "linux":
        raise ImageError(f"image {reference} is for {attributes['Os']}; only linux images run here")
    config = attributes["Config"] or {}
    return Image(
        reference=reference,
        user=(config.get("User") or "").partition(":")[0],
        workdir=config.get("WorkingDir") or "/",
        entrypoint=tuple(config.get("Entrypoint") or ()),
        healthcheck=bool((config.get("Healthcheck") or {}).get("Test", ["NONE"])[0] != "NONE"),
        fresh=fresh,
    )


def _pull(reference: str, stop: threading.Event) -> None:
    repository, tag = (reference, None) if "@" in reference else _split_tag(reference)
    try:
        events = engine().pull(repository, tag=tag, stream=True, decode=True)
        _follow(events, f"cannot pull image {reference}", stop)
    except APIError as error:
        raise ImageError(f"cannot pull image {reference}: {error.explanation or error}") from error


def _split_tag(reference: str) -> tuple[str, str]:
    name, colon, tag = reference.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (reference, "latest")


def _build(environment_dir: Path, reference: str, labels: Mapping[str, str], stop: threading.Event) -> None:
    what = f"cannot build {environment_dir}"
    _log.info("building %s from %s", reference, environment_dir)
    if feature := buildkit_feature((environment_dir / "Dockerfile").read_text()):
        _follow(build_with_cli(environment_dir, reference, labels, feature, stop), what, stop)
        return
    try:
        with sweeping():
            events = engine().build(
                path=str(environment_dir), tag=reference, labels=dict(labels), rm=True, forcerm=True, decode=True
            )
            _follow(noting_layers(events), what, stop)
    except (APIError, DockerBuildError) as error:
        raise ImageError(f"{what}: {getattr(error, 'explanation', None) or error}") from error


def _refuse_changed(environment_dir: Path, digest: str, reference: str) -> None:
    """No image may stand under the digest of what its folder held a moment before."""
    if content_digest(environment_dir) != digest:
        engine().remove_image(reference, noprune=True)
        raise ImageError(f"{environment_dir} was changed while its image was built; the next trial has it built anew")


def _follow(events: Iterator[dict[str, Any]], what: str, stop: threading.Event) -> None:
    """Read a build's or pull's events to their end; an error among them is raised with the tail of the log."""
    log: list[str] = []
    for event in events:
        if stop.is_set():
            raise ImageError(f"{what}: cancelled")
        if "error" in event:
            tail = "\n".join("".join(log).rstrip().splitlines()[-_LOG_TAIL_LINES:])
            raise ImageError(f"{what}: {event['error'].strip()}" + (f"\n{tail}" if tail else ""))
        log.append(event.get("stream", ""))
