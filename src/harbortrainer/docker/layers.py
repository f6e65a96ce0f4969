"""The layers of images, each with its bytes on the daemon's disk, where images share them. Blocking."""

import hashlib
import os
import re
from collections.abc import Mapping
from functools import cache

from harbortrainer.docker.daemon import engine

# Lines of an image's history without a layer; a line with bytes always has one.
_NO_LAYER = re.compile(
    r"#\(nop\)\s+(?!ADD|COPY|WORKDIR)|^(?:ENV|CMD|LABEL|ENTRYPOINT|EXPOSE|USER|ARG|HEALTHCHECK|STOPSIGNAL|VOLUME|SHELL"
    r"|ONBUILD|MAINTAINER)\b"
)


def layers(image: str) -> Mapping[str, int]:
    """By chain, which two images share if all layers up to it are equal. `image`: an ID.

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
