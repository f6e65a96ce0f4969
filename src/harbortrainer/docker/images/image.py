"""Builds or pulls the images of tasks, once for each content digest however many trials ask at the same time."""

import asyncio
import contextlib
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from docker.errors import DockerException
from docker.utils import parse_repository_tag
from docker.utils.build import exclude_paths

from harbortrainer.docker.box.compose import COMPOSE
from harbortrainer.docker.daemon import call, engine, shared
from harbortrainer.docker.images.builds import (
    REPOSITORY,
    ImageError,
    LateError,
    bases,
    build,
    is_here,
    made_here,
    note_fetched,
    only_here,
    pull,
)
from harbortrainer.docker.images.layers import note_made
from harbortrainer.docker.images.origins import fetch, note_fault, other_bases, push_next, share, with_other_bases
from harbortrainer.docker.images.tmux_image import INSTALL_SEC, with_tmux
from harbortrainer.docker.keeping.ownership import DIGEST, image_labels
from harbortrainer.errors import one_line
from harbortrainer.harbor import task_config
from harbortrainer.stopping import in_daemon_thread

MARK_SEC = 3600.0  # between two tags of an image that is in use
_FOR_AGENTS = "environment"  # Harbor's name of the folder; a separate verifier's is another one
_SLACK_SEC = 60.0
_PUSH_SEC = 1800.0  # longest time for one image
_under_way: dict[str, asyncio.Task["Image"]] = {}
_ready: dict[str, "Image"] = {}
_marked: dict[str, float] = {}  # reference -> clock time
_digests: dict[Path, tuple[int, str]] = {}  # environment folder -> (hash of its stat results, content digest)


@dataclass(frozen=True, slots=True)
class Image:
    reference: str
    user: str  # "" = root
    workdir: str
    entrypoint: tuple[str, ...]
    healthcheck: bool
    volumes: bool = False
    fresh: bool = False  # built or pulled by this process
    base: str = ""  # the image to which tmux was added; "" = to none
    no_tmux: str = ""  # why it could not be added
    instead: str = ""  # why it is built although the task names an image


@dataclass(frozen=True, slots=True)
class _Source:
    """What an image is made of: `docker_image`, or the Dockerfile of `folder`. `digest`: of the latter's content."""

    folder: Path
    docker_image: str | None
    digest: str = ""
    force: bool = False
    or_built: bool = False  # where `docker_image` cannot be pulled
    for_agent: bool = False  # who gets tmux

    @property
    def key(self) -> str:
        name = self.docker_image or _reference(self.digest)
        return f"{name} {self.folder if self.or_built else ''} {self.for_agent}"


async def task_image(
    environment_dir: Path,
    docker_image: str | None,
    *,
    force: bool = False,
    prebuilt_only: bool = False,
    run_id: str = "",
    limit_sec: float | None = None,
) -> Image:
    """Get the image of a task: `docker_image`, pulled if Docker lacks it, or built if the content of the folder is new.

    Where `docker_image` cannot be pulled, the Dockerfile of the folder is built, if it has one; `prebuilt_only`: it is
    not. An image for an agent without tmux gets it. `force` builds, once a process, even when Docker has an image of
    this content. `run_id` labels a built image. `limit_sec`: longest time for it; None = no limit. Raises ImageError.
    """
    digest = "" if docker_image else await asyncio.to_thread(recipe_digest, environment_dir)
    ours = not (environment_dir / COMPOSE).exists()
    built = ours and bool(docker_image) and not prebuilt_only and (environment_dir / "Dockerfile").is_file()
    source = _Source(environment_dir, docker_image, digest, force, built, ours and environment_dir.name == _FOR_AGENTS)

    async def make() -> Image:
        setting = "[environment] build_timeout_sec in its task.toml"
        late = f"its image was not ready within {limit_sec or 0:g} s ({setting})"
        image = await _in_thread(partial(_produce, source, run_id), limit_sec, late)
        return await _add_tmux(image, run_id) if source.for_agent else image

    if (image := _ready.get(source.key)) is None:
        image = _ready[source.key] = await shared(_under_way, source.key, make)
    await _mark_used()
    return image


def _produce(source: _Source, run_id: str, stop: threading.Event) -> Image:
    if not source.docker_image:
        return _built(source, source.digest, run_id, stop)
    if not source.force and is_here(source.docker_image):
        return _inspect(source.docker_image)
    if not source.or_built:
        return _pulled(source.docker_image, stop)
    digest = recipe_digest(source.folder)
    if is_here(_reference(digest)):  # an earlier process could not pull: a run goes on with the image that it had
        return replace(_inspect(_reference(digest)), instead=f"image {source.docker_image} is not here")
    try:
        return _pulled(source.docker_image, stop)
    except ImageError as error:
        if stop.is_set():
            raise
        try:
            return replace(_built(source, digest, run_id, stop), instead=one_line(error))
        except ImageError as second:
            raise ImageError(f"{one_line(error)}; {second}") from second


def _pulled(reference: str, stop: threading.Event) -> Image:
    here = is_here(reference)
    with only_here(reference, stop):
        pull(reference, stop)  # of an image that another process has pulled meanwhile: one request
    if not here:
        note_fetched(reference)
    return _inspect(reference, fresh=True)


def _built(source: _Source, digest: str, run_id: str, stop: threading.Event) -> Image:
    reference, fresh, made, there = _reference(digest), False, False, _recipe(source.folder)[0]
    if source.force or not is_here(reference):
        with only_here(reference, stop):
            fresh = source.force or not is_here(reference)  # another process may have built it meanwhile
            made = source.force or (fresh and not _fetched(reference, digest, there, stop))
            if made:
                began, text = time.monotonic(), (source.folder / "Dockerfile").read_text()
                other = with_other_bases(text)
                build(source.folder, reference, image_labels(digest, run_id), stop, other if other != text else "")
                _refuse_changed(source.folder, digest, reference)
                note_made(reference, engine().inspect_image(reference)["Id"], time.monotonic() - began)
    share(reference, there, made)
    return _inspect(reference, fresh)


def _fetched(reference: str, digest: str, there: str, stop: threading.Event) -> bool:
    """Say whether the registry gave the image. One with another base than that which was made here is removed."""
    if not fetch(reference, there, stop):
        return False
    if there == digest or (engine().inspect_image(reference)["Config"]["Labels"] or {}).get(DIGEST) == digest:
        return True
    engine().remove_image(reference, noprune=True)
    return False


async def _add_tmux(image: Image, run_id: str) -> Image:
    """The image with tmux; where it cannot be installed the image as it is, and trials install it."""
    add, late = partial(with_tmux, image.reference, run_id), f"tmux was not installed within {INSTALL_SEC} s"
    try:
        name, made = await _in_thread(add, INSTALL_SEC + _SLACK_SEC, late)
    except ImageError as error:
        return replace(image, no_tmux=one_line(error))
    if name == image.reference:
        return image
    return replace(image, reference=name, base=image.reference, fresh=image.fresh or made)


async def _mark_used() -> None:
    """Tag the images of this process again, each once in MARK_SEC: Docker records the time, and `cleaning` reads it."""
    now = time.monotonic()
    used = dict.fromkeys(name for image in _ready.values() for name in (image.reference, image.base))
    due = [one for one in used if one.startswith(REPOSITORY) and now - _marked.get(one, -MARK_SEC) >= MARK_SEC]
    if due:
        _marked.update(dict.fromkeys(due, now))
        await call(_tag_again, due)


def _tag_again(references: Sequence[str]) -> None:
    for reference in references:
        with contextlib.suppress(DockerException, OSError):
            engine().tag(reference, *parse_repository_tag(reference))


async def images_of(task: Path, run_id: str = "", prebuilt_only: bool = False) -> list[Image]:
    """Get images of one task and of its separate verifiers, built or pulled if Docker lacks them. Raises ImageError."""
    given: dict[str, Any] = {"prebuilt_only": prebuilt_only, "run_id": run_id}
    wanted = dict(await asyncio.to_thread(lambda: list(sources(task))))
    return [await task_image(*source, **given, limit_sec=limit_sec) for source, limit_sec in wanted.items()]


async def push_images() -> None:
    """Push the images to the registry that it lacks of those which this process has made or found."""
    try:
        while await _in_thread(push_next, _PUSH_SEC, f"an image was not pushed within {_PUSH_SEC:g} s"):
            pass
    except LateError as error:
        note_fault(error)


def image_notes(task: str, images: Iterable[Image]) -> Iterator[tuple[str, str]]:
    """Yield kinds of remarks and lines on images of a task that are not as the task or the agent wants them."""
    for image in images:
        if image.instead:
            yield (
                "built",
                f"task {task}: its image is built from its Dockerfile, not pulled: {image.instead}; to insist on the "
                "images that tasks name: environment_kwargs.prebuilt_only=true",
            )
        if image.no_tmux:
            yield (
                "no tmux",
                f"task {task}: its image stays without tmux, which each trial of Terminus-2 has to install: "
                f"{image.no_tmux}",
            )


def sources(task_dir: Path) -> Iterator[tuple[tuple[Path, str | None], float]]:
    """Yield (folder, prebuilt image), seconds: for the containers of a task and of its verifiers."""
    from harbor.models.task.paths import TaskPaths  # not where its images are known already
    from harbor.models.task.verifier_mode import resolve_verifier_environment_definition

    task, paths = task_config(task_dir), TaskPaths(task_dir)
    definitions = [(paths.environment_dir, task.environment)]
    for step in task.steps or [None]:
        if definition := resolve_verifier_environment_definition(task, paths, step):
            definitions.append((definition.directory, definition.config))
    for folder, config in definitions:
        if config.docker_image or is_built(folder):
            yield (folder, config.docker_image), config.build_timeout_sec


def is_built(folder: Path) -> bool:
    return (folder / "Dockerfile").exists() and not (folder / COMPOSE).exists()


def forget(reference: str) -> None:
    """Let the next trial look for an image again, after it was removed."""
    for key in [key for key, one in _ready.items() if reference in (one.reference, one.base)]:
        del _ready[key]


async def _in_thread[R](produce: Callable[[threading.Event], R], limit_sec: float | None, late: str) -> R:
    """Raises LateError `late` after `limit_sec`."""
    stop = threading.Event()
    try:
        async with asyncio.timeout(limit_sec):
            return await in_daemon_thread(produce, stop)
    except TimeoutError as error:
        raise LateError(late) from error
    finally:
        stop.set()  # cancelled or late: a build or a pull ends now


def task_reference(environment_dir: Path) -> str:
    """Return the name of the image that is, or would be, built from a folder. Blocking."""
    return _reference(recipe_digest(environment_dir))


def recipe_digest(environment_dir: Path) -> str:
    """Return the digest of the content, of the images that stand for those of its FROM lines, and of those made here.

    Blocking.
    """
    return _recipe(environment_dir)[1]


def _recipe(environment_dir: Path) -> tuple[str, str]:
    """The image's name in a registry, without the bases that each machine has made for itself, and its digest here."""
    digest, dockerfile = content_digest(environment_dir), environment_dir / "Dockerfile"
    text = dockerfile.read_text() if dockerfile.is_file() else ""
    others = other_bases(text)
    there = hashlib.sha256(f"{digest}{sorted(others.items())}".encode()).hexdigest() if others else digest
    made = {name: found for name in bases(text) if (found := made_here(others.get(name, name)))}
    return there, hashlib.sha256(f"{there}{sorted(made.items())}".encode()).hexdigest() if made else there


def _reference(digest: str) -> str:
    return f"{REPOSITORY}:{digest[:12]}"


def _inspect(reference: str, fresh: bool = False) -> Image:
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
        volumes=bool(config.get("Volumes")),
        fresh=fresh,
    )


def _refuse_changed(environment_dir: Path, digest: str, reference: str) -> None:
    """Remove the image and raise ImageError if its folder has changed since `digest` was taken."""
    if recipe_digest(environment_dir) != digest:
        engine().remove_image(reference, noprune=True)
        raise ImageError(f"{environment_dir} was changed while its image was built; the next trial builds it again")


def content_digest(environment_dir: Path) -> str:
    """Return SHA-256 over names, kinds, modes and contents of the build context, read again when a stat changed."""
    stats = {name: os.lstat(f"{environment_dir}/{name}") for name in _context(environment_dir)}
    fingerprint = hash(tuple((name, s.st_mode, s.st_size, s.st_mtime_ns) for name, s in stats.items()))
    known, known_digest = _digests.get(environment_dir, (None, ""))
    if known == fingerprint:
        return known_digest
    digest = hashlib.sha256()
    for name, found in stats.items():
        path, mode = f"{environment_dir}/{name}", found.st_mode
        kind = "l" if stat.S_ISLNK(mode) else "d" if stat.S_ISDIR(mode) else "f"
        content = os.readlink(path).encode() if kind == "l" else b""
        if kind == "f":
            with open(path, "rb") as opened:
                content = opened.read()
        digest.update(f"{name}\0{kind}{mode & 0o777:o}\0{len(content)}\0".encode())
        digest.update(content)
    _digests[environment_dir] = fingerprint, digest.hexdigest()
    return digest.hexdigest()


def _context(environment_dir: Path) -> list[str]:
    ignore = environment_dir / ".dockerignore"
    if not ignore.exists():
        below = (f"{at}/{name}" for at, folders, files in os.walk(environment_dir) for name in (*folders, *files))
        return sorted(path[len(str(environment_dir)) + 1 :] for path in below)
    lines = ignore.read_text().splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [name for name in sorted(exclude_paths(str(environment_dir), patterns)) if name]
