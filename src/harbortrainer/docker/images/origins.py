"""Where task images come from besides their Dockerfiles: a registry of images that were made before (`images`), and
other images for those that FROM lines name (`base_images`). Blocking.
"""

import contextlib
import fnmatch
import hashlib
import logging
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

import requests
from docker.errors import APIError, DockerException, ImageNotFound
from docker.utils import parse_repository_tag

from harbortrainer.docker.daemon import engine, engine_until
from harbortrainer.docker.images.builds import FROM, ImageError, bases, follow, pull
from harbortrainer.errors import UserError, one_line

_REGISTRY = re.compile(r"[a-z0-9.-]+(?::\d+)?(?:/[a-z0-9._-]+)+")
_LACKS = re.compile(r"manifest unknown|not found|name unknown|denied", re.IGNORECASE)
_log = logging.getLogger("harbortrainer")


@dataclass(slots=True)
class _Origins:
    """Of this process. `shared`: what the registry is known to have; `due`: images for it by name, each with its name
    there and whether it was made now; `said`: a line on a fault of it was logged.
    """

    registry: str = ""
    bases: tuple[tuple[str, str], ...] = ()
    shared: set[str] = field(default_factory=set[str])
    due: dict[str, tuple[str, bool]] = field(default_factory=dict[str, tuple[str, bool]])
    said: bool = False


_origins = _Origins()


def set_origins(images: str | None, base_images: str | None) -> None:
    """Take the settings of these names for all images that this process makes from now on. Raises UserError."""
    if images is not None and not _REGISTRY.fullmatch(images):
        raise UserError(f"images={images}: give REGISTRY/PREFIX without a tag, such as registry.example:5000/tasks")
    _origins.registry, _origins.shared, _origins.due, _origins.said = images or "", set(), {}, False
    _origins.bases = _read(base_images) if base_images else ()


def bases_key() -> str:
    """Return names the bases that are taken for others; "" = none is."""
    return hashlib.sha256(str(_origins.bases).encode()).hexdigest()[:16] if _origins.bases else ""


def _read(file: str) -> tuple[tuple[str, str], ...]:
    try:
        lines = Path(file).expanduser().read_text().splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"base_images={file}: cannot be read ({one_line(error)}); name a text file") from None
    pairs = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if wrong := next((pair for pair in pairs if len(pair) != 2 or ("*" in pair[1]) > pair[0].endswith("*")), None):
        raise UserError(
            f"base_images={file}: {' '.join(wrong)}: a line is the image of a FROM and the one to take, NAME OTHER, or "
            "PREFIX* OTHER*"
        )
    return tuple((pair[0], pair[1]) for pair in pairs)


def other_bases(dockerfile: str) -> dict[str, str]:
    """Return by image of a FROM line the one to take instead."""
    return {name: other for name in bases(dockerfile) if (other := _other(name)) != name}


def _other(name: str) -> str:
    for given, other in _origins.bases:
        if fnmatch.fnmatchcase(name, given):
            return other.replace("*", name.removeprefix(given.rstrip("*")))
    return name


def with_other_bases(dockerfile: str) -> str:
    """Return a Dockerfile's text with these images in its FROM lines."""
    others = other_bases(dockerfile)

    def line(found: re.Match[str]) -> str:
        start, end = found.span(1)
        text, at = found.group(0), found.start()
        return text[: start - at] + others.get(found.group(1), found.group(1)) + text[end - at :]

    return FROM.sub(line, dockerfile) if others else dockerfile


def fetch(reference: str, tag: str, stop: threading.Event) -> bool:
    """Say whether the registry gave the image, which then has its name here. `tag`: its name there, by its content."""
    if not _origins.registry:
        return False
    there = f"{_origins.registry}:{tag}"
    try:
        pull(there, stop)
        engine().tag(there, *parse_repository_tag(reference))
        engine().remove_image(there, noprune=True)
    except (ImageError, DockerException, requests.RequestException) as error:
        if stop.is_set():
            raise
        if not _LACKS.search(str(error)):
            note_fault(error)
        return False
    _origins.shared.add(there)
    return True


def share(reference: str, tag: str, made: bool) -> None:
    """Note that the registry gets an image, unless it has it; one `made` now takes the place of what it has."""
    there = f"{_origins.registry}:{tag}"
    if _origins.registry and (made or there not in _origins.shared):
        _origins.due[reference] = there, made


def push_next(stop: threading.Event) -> bool:
    """Push one of the images that were noted. Returns whether others are due that can be pushed now.

    After a fault of the registry, of which one line is logged, the image stays noted.
    """
    if not _origins.due:
        return False
    reference = next(iter(_origins.due))
    there, made = _origins.due.pop(reference)
    try:
        if made or not _has(there):
            _push(reference, there, stop)
    except ImageNotFound:  # removed meanwhile
        return True
    except (ImageError, DockerException, requests.RequestException) as error:
        _origins.due.setdefault(reference, (there, made))
        if stop.is_set():
            raise
        note_fault(error)
        return False
    _origins.shared.add(there)
    return True


def _push(reference: str, there: str, stop: threading.Event) -> None:
    engine().tag(reference, *parse_repository_tag(there))
    try:
        with engine_until(stop) as client:
            follow(client.push(there, stream=True, decode=True), f"cannot push image {there}", stop)
    finally:
        with contextlib.suppress(DockerException, requests.RequestException):
            engine().remove_image(there, noprune=True)


def _has(there: str) -> bool:
    try:
        engine().inspect_distribution(there)
    except APIError as error:
        if _LACKS.search(str(error)):
            return False
        raise
    return True


def is_of_registry(name: str) -> bool:
    """Return whether a name is one in the registry: an image has it while it is pushed, or since a killed push."""
    return bool(_origins.registry) and name.startswith(f"{_origins.registry}:")


def note_fault(error: Exception) -> None:
    """Log the first fault of the registry."""
    if not _origins.said:
        _origins.said = True
        _log.warning("images=%s: %s; images are made here as without it", _origins.registry, one_line(error))
