"""Images without VOLUME: a container's files there are in its layer then, seen and copied like others. Blocking."""

import io
import json
import logging
import tarfile
from collections.abc import Mapping
from typing import Any

from docker.errors import APIError

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images.builds import REPOSITORY, is_here

_log = logging.getLogger("harbortrainer")


def without_volumes(reference: str) -> str:
    """Return the image itself if it has no VOLUME; else the name of one of the same layers that has none.

    Where Docker cannot make that: one warning, and the image itself. Raises docker.errors.ImageNotFound, APIError.
    """
    found = engine().inspect_image(reference)
    if not (found["Config"] or {}).get("Volumes"):
        return reference
    name = f"{REPOSITORY}:files-{found['Id'].removeprefix('sha256:')[:12]}"
    if is_here(name):
        return name
    try:
        problem = " ".join(line.get("error", "") for line in engine().load_image(_archive(found, name)))
    except APIError as error:
        problem = str(error)
    if is_here(name):
        return name
    _log.warning(
        "image %s has a VOLUME, and Docker cannot make the image without it (%s): what rewards depend on there is not "
        "seen", reference, problem.strip(),
    )  # fmt: skip
    return reference


def _archive(found: Mapping[str, Any], name: str) -> bytes:
    """As `docker save` writes it, without the layers: `docker load` takes those that Docker has."""
    layers = found["RootFS"]["Layers"]
    config = {
        "architecture": found["Architecture"],
        "os": found["Os"],
        "created": found["Created"],
        "config": {**found["Config"], "Volumes": None},
        "rootfs": {"type": "layers", "diff_ids": layers},
        "history": [{"created": found["Created"], "created_by": "without VOLUME"} for _ in layers],  # tells their sizes
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": [f"{n}.tar" for n in range(len(layers))]}]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        for path, content in (("config.json", config), ("manifest.json", manifest)):
            text = json.dumps(content).encode()
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            file.addfile(entry, io.BytesIO(text))
    return archive.getvalue()
