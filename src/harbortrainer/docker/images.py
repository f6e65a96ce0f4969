"""Builds or pulls the images of tasks, once for each content digest however many trials ask at the same time."""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import APIError, DockerException, ImageNotFound
from docker.errors import BuildError as DockerBuildError
from docker.utils import parse_repository_tag
from docker.utils.build import exclude_paths
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition

from harbortrainer.docker.cleaning import image_labels
from harbortrainer.docker.daemon import call, engine, shared
from harbortrainer.errors import UserError
from harbortrainer.stopping import in_daemon_thread

N_PARALLEL_BUILDS = 2
MARK_SEC = 3600.0  # between two tags of an image that is in use
_REPOSITORY = "harbortrainer/task"
_LOG_TAIL_LINES = 20
_CHUNK = 1 << 20
_log = logging.getLogger(__name__)
_under_way: dict[str, asyncio.Task["Image"]] = {}
_ready: dict[str, "Image"] = {}
_marked: dict[str, float] = {}  # reference -> clock time
_digests: dict[Path, tuple[int, str]] = {}  # environment folder -> (hash of its stat results, content digest)
_FEATURES = {
    "# syntax=": re.compile(r"\A(?:\s*#[^\n]*\n)*\s*#\s*syntax\s*=", re.IGNORECASE),
    "RUN --mount/--network/--security": re.compile(r"^\s*RUN\s+(?:--\S+\s+)*--(?:mount|network|security)", re.M | re.I),
    "COPY/ADD --link/--chmod/--parents/--exclude/--checksum": re.compile(
        r"^\s*(?:COPY|ADD)\s+(?:--\S+\s+)*--(?:link|chmod|parents|exclude|checksum|keep-git-dir)", re.M | re.I
    ),
    "heredoc": re.compile(r"^\s*(?:RUN|COPY|ADD)\s+(?:[^\n]*\s)?<<-?[\"']?[A-Za-z_]\w*[\"']?", re.M | re.I),
}


class ImageError(RuntimeError):
    """An image could not be built or pulled, because of the task or the registry. Retrying rarely helps."""


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
    """The image of a task: pulls `docker_image` if Docker lacks it, or builds `environment_dir` if its content is new.

    `force` builds, once a process, even when Docker has an image of this content. `run_id` labels a built image.
    `limit_sec`: longest time for it; None = no limit. Raises ImageError.
    """
    digest = "" if docker_image else await asyncio.to_thread(content_digest, environment_dir)
    reference = docker_image or _reference(digest)

    def produce(stop: threading.Event) -> Image:
        fresh = force or not is_here(reference)
        if fresh and docker_image:
            _pull(reference, stop)
        elif fresh:
            _build(environment_dir, reference, image_labels(digest, run_id), stop)
            _refuse_changed(environment_dir, digest, reference)
        return _inspect(reference, fresh)

    if (image := _ready.get(reference)) is None:
        image = _ready[reference] = await shared(_under_way, reference, lambda: _in_thread(produce, limit_sec))
    await _mark_used()
    return image


async def _mark_used() -> None:
    """Tag the images of this process again, each once in MARK_SEC: Docker records the time, and `cleaning` reads it."""
    now = time.monotonic()
    due = [one for one in _ready if one.startswith(_REPOSITORY) and now - _marked.get(one, -MARK_SEC) >= MARK_SEC]
    if due:
        _marked.update(dict.fromkeys(due, now))
        await call(_tag_again, due)


def _tag_again(references: Sequence[str]) -> None:
    for reference in references:
        with contextlib.suppress(DockerException, OSError):
            engine().tag(reference, *parse_repository_tag(reference))


async def prepare_images(
    tasks: Sequence[Path],
    progress: Callable[[str, int, int], None] | None = None,
    run_id: str = "",
) -> int:
    """Build or pull the images of tasks, a few at a time. Returns how many Docker lacked before.

    `progress` gets an image's name, the number done and their total. Harbor builds those of tasks with a compose file.
    Raises UserError naming each task whose image fails, or is not ready within its `build_timeout_sec`, with the end of
    its log.
    """
    wanted = {source: (task, limit_sec) for task in tasks for source, limit_sec in _sources(task)}
    images: list[Image] = []
    faults: list[str] = []
    limit = asyncio.Semaphore(N_PARALLEL_BUILDS)

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
    """(folder, prebuilt image), seconds: for the containers of a task and of its verifiers."""
    task = Task(task_dir, disable_verification=True)
    definitions = [(task.paths.environment_dir, task.config.environment)]
    for step in task.config.steps or [None]:
        if definition := resolve_verifier_environment_definition(task.config, task.paths, step):
            definitions.append((definition.directory, definition.config))
    for folder, config in definitions:
        built = (folder / "Dockerfile").exists() and not (folder / "docker-compose.yaml").exists()
        if config.docker_image or built:
            yield (folder, config.docker_image), config.build_timeout_sec


def image_ids(task_dirs: Sequence[Path]) -> dict[str, str]:
    """The images of tasks by name, each with its ID; "" = Docker lacks it. Blocking."""
    sources = dict.fromkeys(source for task in task_dirs for source, _ in _sources(task))
    names = [docker_image or task_reference(folder) for folder, docker_image in sources]
    return {name: engine().inspect_image(name)["Id"] if is_here(name) else "" for name in names}


def save_images(names: Sequence[str], file: Path) -> None:
    """Write images with the layers that they share into one tar file. Blocking."""
    client = engine()
    with client.get(f"{client.base_url}/images/get", params={"names": list(names)}, stream=True) as answer:
        answer.raise_for_status()
        with file.open("wb") as out:
            for chunk in answer.iter_content(_CHUNK):
                out.write(chunk)


def load_images(file: Path) -> None:
    """Add the images of a file of `save_images`; they keep names and IDs. Blocking."""
    with file.open("rb") as saved:
        for event in engine().load_image(saved) or ():
            if "error" in event:
                raise ImageError(f"cannot load images: {event['error']}")


def forget(image: Image) -> None:
    """Let the next trial look for an image again, after it was removed outside this process."""
    _ready.pop(image.reference, None)


async def _in_thread(produce: Callable[[threading.Event], Image], limit_sec: float | None) -> Image:
    stop = threading.Event()
    try:
        async with asyncio.timeout(limit_sec):
            return await in_daemon_thread(produce, stop)
    except TimeoutError as error:
        limit = f"{limit_sec:g} s ([environment] build_timeout_sec in its task.toml)"
        raise ImageError(f"its image was not ready within {limit}") from error
    finally:
        stop.set()  # cancelled or late: a build by the CLI ends now, others at their next line of output


def task_reference(environment_dir: Path) -> str:
    """The name of the image that is, or would be, built from a folder. Blocking."""
    return _reference(content_digest(environment_dir))


def _reference(digest: str) -> str:
    return f"{_REPOSITORY}:{digest[:12]}"


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
    try:
        events = engine().pull(reference, stream=True, decode=True)
        _follow(events, f"cannot pull image {reference}", stop)
    except APIError as error:
        raise ImageError(f"cannot pull image {reference}: {error.explanation or error}") from error


def _build(environment_dir: Path, reference: str, labels: Mapping[str, str], stop: threading.Event) -> None:
    what = f"cannot build {environment_dir}"
    _log.info("building %s from %s", reference, environment_dir)
    if feature := buildkit_feature((environment_dir / "Dockerfile").read_text()):
        _follow(build_with_cli(environment_dir, reference, labels, feature, stop), what, stop)
        return
    try:
        events = engine().build(
            path=str(environment_dir), tag=reference, labels=dict(labels), rm=True, forcerm=True, decode=True
        )
        _follow(events, what, stop)
    except (APIError, DockerBuildError) as error:
        raise ImageError(f"{what}: {getattr(error, 'explanation', None) or error}") from error


def _refuse_changed(environment_dir: Path, digest: str, reference: str) -> None:
    """Remove the image and raise ImageError if its folder has changed since `digest` was taken."""
    if content_digest(environment_dir) != digest:
        engine().remove_image(reference, noprune=True)
        raise ImageError(f"{environment_dir} was changed while its image was built; the next trial builds it again")


def _follow(events: Iterator[dict[str, Any]], what: str, stop: threading.Event) -> None:
    """Read a build's or pull's events to their end. Raises ImageError with the tail of the log."""
    log: list[str] = []
    for event in events:
        if stop.is_set():
            raise ImageError(f"{what}: cancelled")
        if "error" in event:
            tail = "\n".join("".join(log).rstrip().splitlines()[-_LOG_TAIL_LINES:])
            raise ImageError(f"{what}: {event['error'].strip()}" + (f"\n{tail}" if tail else ""))
        log.append(event.get("stream", ""))


def buildkit_feature(dockerfile: str) -> str | None:
    """The first BuildKit-only construct in a Dockerfile's text; None = the classic builder can build it."""
    return next((name for name, pattern in _FEATURES.items() if pattern.search(dockerfile)), None)


def build_with_cli(
    context: Path, reference: str, labels: Mapping[str, str], feature: str, stop: threading.Event
) -> Iterator[dict[str, str]]:
    """Build with `docker build`; yields events in the Engine API's form ("stream" or "error").

    Setting `stop` ends it; set it afterwards in any case, since a thread waits for it.
    """
    if shutil.which("docker") is None:
        yield {"error": f"the Dockerfile uses {feature}; install the docker CLI with its buildx plugin"}
        return
    command = ["docker", "build", "--progress=plain", "--tag", reference]
    command += [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    with subprocess.Popen(
        [*command, str(context)],
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        threading.Thread(target=_kill_after, args=(stop, process), name="docker-build-stop", daemon=True).start()
        for line in process.stdout:
            yield {"stream": line}
        code = process.wait()
    if code != 0:
        yield {"error": f"docker build (the Dockerfile uses {feature}) ended with code {code}"}


def _kill_after(stop: threading.Event, process: subprocess.Popen[str]) -> None:
    stop.wait()
    process.kill()  # does nothing if it has ended


def content_digest(environment_dir: Path) -> str:
    """SHA-256 over names, kinds, modes and contents of the build context, read again only when a stat changed."""
    paths = _context(environment_dir)
    fingerprint = hash(tuple((str(p), (s := p.lstat()).st_mode, s.st_size, s.st_mtime_ns) for p in paths))
    known, known_digest = _digests.get(environment_dir, (None, ""))
    if known == fingerprint:
        return known_digest
    digest = hashlib.sha256()
    for path in paths:
        kind = "l" if path.is_symlink() else "d" if path.is_dir() else "f"
        mode = path.lstat().st_mode & 0o777
        content = os.readlink(path).encode() if kind == "l" else path.read_bytes() if kind == "f" else b""
        digest.update(f"{path.relative_to(environment_dir).as_posix()}\0{kind}{mode:o}\0{len(content)}\0".encode())
        digest.update(content)
    _digests[environment_dir] = fingerprint, digest.hexdigest()
    return digest.hexdigest()


def _context(environment_dir: Path) -> list[Path]:
    ignore = environment_dir / ".dockerignore"
    lines = ignore.read_text().splitlines() if ignore.exists() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [environment_dir / name for name in sorted(exclude_paths(str(environment_dir), patterns)) if name]
