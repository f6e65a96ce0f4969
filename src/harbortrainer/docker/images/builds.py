"""Builds and pulls images: by the Engine API, or by the docker CLI where a Dockerfile needs BuildKit."""

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests
from docker.errors import APIError, DockerException, ImageNotFound
from docker.errors import BuildError as DockerBuildError
from docker.utils import parse_repository_tag
from urllib3.exceptions import ProtocolError

from harbortrainer.docker.daemon import engine, engine_until
from harbortrainer.docker.images.steps import in_turn, lock_file, locked
from harbortrainer.durable.files import cache_folder, make_folder, replace_text
from harbortrainer.errors import one_line

REPOSITORY = "harbortrainer/task"  # of the images that are built here
CACHED = f"{REPOSITORY}:cache-"  # begins the names of what failed builds, and stages before the last, leave
KEPT_CACHE = 2 * 1000**3  # bytes of BuildKit's cache, once images are removed for others
FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.M | re.I)
_STAGE = re.compile(r"^Step \d+/\d+ : FROM ", re.M)  # in the log of the classic builder, as the next two
_MADE = re.compile(r"^ ---> ([0-9a-f]{12})$", re.M)
_BUILT = "Successfully built "
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG_TAIL_LINES = 20
_LOCK_SEC = 0.2  # between two tries to get a lock
_CLI_SEC = 30
NO_BUILDKIT = "install the docker CLI with its buildx or compose plugin"
_log = logging.getLogger(__name__)
_FEATURES = {
    "# syntax=": re.compile(r"\A(?:\s*#[^\n]*\n)*\s*#\s*syntax\s*=", re.IGNORECASE),
    "RUN --mount/--network/--security": re.compile(r"^\s*RUN\s+(?:--\S+\s+)*--(?:mount|network|security)", re.M | re.I),
    "COPY/ADD --link/--chmod/--parents/--exclude/--checksum": re.compile(
        r"^\s*(?:COPY|ADD)\s+(?:--\S+\s+)*--(?:link|chmod|parents|exclude|checksum|keep-git-dir)", re.M | re.I
    ),
    "heredoc": re.compile(r"^\s*(?:RUN|COPY|ADD)\s+(?:[^\n]*\s)?<<-?[\"']?[A-Za-z_]\w*[\"']?", re.M | re.I),
}


# How Docker, BuildKit and programs in a Dockerfile report that a network, the disk or the daemon is at fault.
_PASSING = re.compile(
    r"dial tcp|no such host|i/o timeout|TLS handshake|toomanyrequests|too many requests|net/http: |unexpected EOF"
    r"|error reading from server|Cannot connect to the Docker daemon|no space left on device|disk quota exceeded"
    r"|error creating overlay mount"
    r"|Temporary failure (?:resolving|in name resolution)|[Cc]ould not resolve host|Could not connect to "
    r"|Name or service not known|[Cc]onnection (?:refused|reset|timed out)|Network is unreachable|NewConnectionError"
    r"|ReadTimeoutError|ENOTFOUND|EAI_AGAIN|ECONNRE(?:FUSED|SET)|ETIMEDOUT|failed to lookup address"
    r"|curl: \((?:5|6|7|28|35|52|56)\)|wget: (?:unable to resolve|bad address)|(?:50[234]|429) (?:Bad Gateway|Service|"
    r"Gateway|Too Many)|received unexpected HTTP status: 5\d\d"
)
BUILDERS_OWN = ("Step ", "--->", "Removing intermediate container")
_LAST_LINES, _LONGEST = 3, 400  # of a builder's log in one line; letters


class ImageError(RuntimeError):
    """An image could not be built or pulled, because of the task, the network, the disk or the daemon."""

    @property
    def passing(self) -> bool:
        """Whether it looks like a fault of network, disk or daemon, so that the same build may succeed later."""
        return _PASSING.search(str(self)) is not None

    @property
    def last_lines(self) -> str:
        """The error and what the builder printed last, in one line."""
        head, *log = str(self).strip().splitlines() or [""]
        said = [line.strip() for line in log if line.strip() and not line.strip().startswith(BUILDERS_OWN)]
        return one_line(" | ".join([head, *said[-_LAST_LINES:]]), _LONGEST)


class LateError(ImageError):
    """An image was not ready in time, which may be the machine's fault; steps that were made are made."""


def is_here(reference: str) -> bool:
    try:
        engine().inspect_image(reference)
    except ImageNotFound:
        return False
    return True


def made_here(name: str) -> str:
    """Return the id of an image that no registry knows, whose name may come to mean another; "" = of any other image.

    It stays what it was when this process first asked.
    """
    with contextlib.suppress(DockerException, requests.RequestException):  # who needs Docker says that it is away
        return _made_here(os.environ.get("DOCKER_HOST"), name)
    return ""


@functools.cache
def _made_here(_host: str | None, name: str) -> str:
    try:
        found = engine().inspect_image(name)
    except ImageNotFound:
        return ""
    return "" if found.get("RepoDigests") else found["Id"]


@contextlib.contextmanager
def only_here(reference: str, stop: threading.Event) -> Iterator[None]:
    """Keep other processes of this user from making this image within the block.

    Raises ImageError once `stop` is set.
    """
    with lock_file(reference) as lock:
        while not locked(lock):
            if stop.wait(_LOCK_SEC):
                raise ImageError(f"image {reference}: cancelled while another process made it")
        yield


def tagged(name: str) -> str:
    """Return the name as Docker lists it; with a digest it is not listed by that name."""
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def fetched() -> set[str]:
    """Return names of images that this user's processes have pulled for tasks."""
    folder = _fetched()
    return {file.read_text() for file in folder.iterdir()} if folder.is_dir() else set()


def note_fetched(reference: str) -> None:
    """Raises DiskFault."""
    make_folder(_fetched())
    replace_text(_fetched() / hashlib.sha256(reference.encode()).hexdigest()[:32], tagged(reference))


def _fetched() -> Path:
    host = hashlib.sha256(os.environ.get("DOCKER_HOST", "").encode()).hexdigest()[:8]
    return cache_folder("fetched") / host


def prune_builds() -> None:
    """Bound BuildKit's cache, where this process has built with it."""
    if _used_buildkit:
        with contextlib.suppress(APIError):
            engine().prune_builds(keep_storage=KEPT_CACHE)


_used_buildkit: list[str] = []


def pull(reference: str, stop: threading.Event) -> None:
    """Raises ImageError."""
    try:
        with engine_until(stop) as client:
            follow(client.pull(reference, stream=True, decode=True), f"cannot pull image {reference}", stop)
    except APIError as error:
        raise ImageError(f"cannot pull image {reference}: {error.explanation or error}") from error


def build(
    environment_dir: Path, reference: str, labels: Mapping[str, str], stop: threading.Event, dockerfile: str = ""
) -> None:
    """Build a folder by this text, "" = by its Dockerfile. Raises ImageError, DiskFault."""
    what = f"cannot build {environment_dir}"
    _log.info("building %s from %s", reference, environment_dir)
    text = dockerfile or (environment_dir / "Dockerfile").read_text()
    lacking = [base for base in bases(text) if not is_here(base)]
    with tempfile.NamedTemporaryFile("w", prefix="Dockerfile.") as other:
        other.write(text)
        other.flush()
        path = Path(other.name) if dockerfile else environment_dir / "Dockerfile"
        _build(environment_dir, reference, labels, stop, what, path)
    for base in lacking:
        if is_here(base):  # BuildKit pulls none into Docker's list
            note_fetched(base)


def bases(dockerfile: str) -> list[str]:
    """Return the images of FROM lines as they are written, without stages and variables."""
    found = FROM.findall(dockerfile)
    stages = {stage.lower() for _, stage in found} | {"scratch"}
    return [name for name, _ in found if name.lower() not in stages and "$" not in name]


def _build(
    environment_dir: Path, reference: str, labels: Mapping[str, str], stop: threading.Event, what: str, dockerfile: Path
) -> None:
    if feature := buildkit_feature(text := dockerfile.read_text()):
        _used_buildkit.append(reference)
        follow(build_with_cli(environment_dir, reference, labels, feature, stop, dockerfile), what, stop)
        return
    log: list[str] = []
    try:
        with in_turn(text, stop) as read, engine_until(stop) as client:
            events = client.build(
                path=str(environment_dir),
                dockerfile=str(dockerfile),
                tag=reference,
                labels=dict(labels),
                rm=True,
                forcerm=True,
                decode=True,
            )
            follow(read(events), what, stop, log)
    except (APIError, DockerBuildError) as error:
        raise ImageError(f"{what}: {getattr(error, 'explanation', None) or error}") from error
    finally:
        _name_left("".join(log))


def follow(events: Iterator[dict[str, Any]], what: str, stop: threading.Event, log: list[str] | None = None) -> None:
    """Read a build's or pull's events to their end; `log` gets what they say.

    Raises ImageError with the tail of the log.
    """
    log = [] if log is None else log
    try:
        for event in events:
            if stop.is_set():
                raise ImageError(f"{what}: cancelled")
            if "error" in event:
                tail = "\n".join("".join(log).rstrip().splitlines()[-_LOG_TAIL_LINES:])
                raise ImageError(f"{what}: {event['error'].strip()}" + (f"\n{tail}" if tail else ""))
            log.append(_COLOUR.sub("", event.get("stream", "")))
    except ProtocolError as error:  # the connection was cut, by `stop` or by the daemon's end
        raise ImageError(f"{what}: {'cancelled' if stop.is_set() else f'unexpected EOF ({error})'}") from error


def _name_left(log: str) -> None:
    """Name what a build has left without a name: its last step if it failed, and the stages before its last one."""
    stages = _STAGE.split(log)[1:]
    for stage in stages[:-1] if _BUILT in log else stages:
        if made := _MADE.findall(stage)[1:]:  # the first is the base
            with contextlib.suppress(DockerException):  # it is a cache
                engine().tag(made[-1], *parse_repository_tag(f"{CACHED}{made[-1]}"))


def buildkit_feature(dockerfile: str) -> str | None:
    """Return the first BuildKit-only construct in a Dockerfile's text; None = the classic builder can build it."""
    return next((name for name, pattern in _FEATURES.items() if pattern.search(dockerfile)), None)


def build_with_cli(
    context: Path,
    reference: str,
    labels: Mapping[str, str],
    feature: str,
    stop: threading.Event,
    dockerfile: Path | None = None,
) -> Iterator[dict[str, str]]:
    """Build by `buildkit_command`; yields events in the Engine API's form ("stream" or "error").

    Setting `stop` ends it; set it afterwards in any case, since a thread waits for it.
    """
    if not (command := buildkit_command()):
        yield {"error": f"the Dockerfile uses {feature}; {NO_BUILDKIT}"}
        return
    words, compose_file = _words(command, context, reference, labels, dockerfile or context / "Dockerfile")
    with subprocess.Popen(
        [*command, *words],
        env={**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as given:
            given.write(compose_file)
        threading.Thread(target=_kill_after, args=(stop, process), name="docker-build-stop", daemon=True).start()
        for line in process.stdout:
            yield {"stream": line}
        code = process.wait()
    if code != 0:
        yield {"error": f"{' '.join(command)} (the Dockerfile uses {feature}) ended with code {code}"}


def _words(
    command: Sequence[str], context: Path, reference: str, labels: Mapping[str, str], dockerfile: Path
) -> tuple[list[str], str]:
    """The arguments of `buildkit_command`, and its input."""
    if command[-1] == "build":
        marks = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        return ["--tag", reference, "--file", str(dockerfile), *marks, str(context)], ""
    build = {"context": str(context), "dockerfile": str(dockerfile), "labels": dict(labels)}
    given = json.dumps({"services": {"main": {"image": reference, "build": build}}}).replace("$", "$$")
    return ["--project-name", "harbortrainer", "--file", "-", "build"], given


def buildkit_command() -> list[str]:
    """Return the CLI's command that has BuildKit: with buildx or before version 23 `docker build`, else Compose.

    [] = there is none.
    """
    if printed("docker", "buildx", "version"):
        return ["docker", "build"]
    major = printed("docker", "--version").removeprefix("Docker version ").partition(".")[0]
    if major.isdigit() and int(major) < 23:
        return ["docker", "build"]
    return ["docker", "compose"] if printed("docker", "compose", "version") else []


def printed(*command: str) -> str:
    """Return what a command prints; "" when it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CLI_SEC)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _kill_after(stop: threading.Event, process: subprocess.Popen[str]) -> None:
    stop.wait()
    process.kill()  # does nothing if it has ended
