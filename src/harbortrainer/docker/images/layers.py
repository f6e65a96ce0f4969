"""The layers of images, each with its bytes on the daemon's disk, where images share them. Blocking."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from harbortrainer.docker.daemon import engine
from harbortrainer.durable.files import cache_folder, make_folder

# Lines of an image's history without a layer; a line with bytes always has one.
_NO_LAYER = re.compile(
    r"#\(nop\)\s+(?!ADD|COPY|WORKDIR)|^(?:ENV|CMD|LABEL|ENTRYPOINT|EXPOSE|USER|ARG|HEALTHCHECK|STOPSIGNAL|VOLUME|SHELL"
    r"|ONBUILD|MAINTAINER)\b"
)


def layers(image: str) -> Mapping[str, int]:
    """Return sizes by chain, which two images share if all layers up to it are equal. `image`: an ID.

    Raises docker.errors.DockerException.
    """
    return _layers(image, os.environ.get("DOCKER_HOST"))


@cache
def _layers(image: str, _host: str | None) -> Mapping[str, int]:
    diffs = engine().inspect_image(image)["RootFS"].get("Layers") or []
    lines = engine().history(image)[::-1]
    sizes = [line["Size"] for line in lines if line["Size"] or not _NO_LAYER.search(line["CreatedBy"])]
    if len(sizes) != len(diffs):  # a builder that writes other lines
        sizes = sorted((line["Size"] for line in lines if line["Size"]), reverse=True)
        sizes = [*sizes, *[0] * len(diffs)][: len(diffs)]
    chain, found = "", dict[str, int]()
    for diff, size in zip(diffs, sizes, strict=True):
        chain = hashlib.sha256(f"{chain} {diff}".encode()).hexdigest()[:16]
        found[chain] = size
    return found


def note_made(reference: str, image: str, seconds: float) -> None:
    """Remember what an image took to be made. `image`: its ID. Raises docker.errors.DockerException, DiskFault."""
    make_folder(_file().parent)
    with contextlib.suppress(OSError), _file().open("a") as file:
        file.write(json.dumps([reference, seconds, dict(layers(image))]) + "\n")


def made() -> dict[str, tuple[float, Mapping[str, int]]]:
    """Return by reference the seconds and layers of images that were made on this machine, removed ones too."""
    found: dict[str, tuple[float, Mapping[str, int]]] = {}
    with contextlib.suppress(OSError):
        for line in _file().read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that a killed process has not ended
                name, seconds, parts = json.loads(line)
                found[name] = seconds, parts
    return found


def _file() -> Path:
    host = hashlib.sha256(os.environ.get("DOCKER_HOST", "").encode()).hexdigest()[:8]
    return cache_folder("made") / f"{host}.jsonl"
