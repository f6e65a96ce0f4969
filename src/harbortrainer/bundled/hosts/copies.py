"""Copies of task images, carried from one host's daemon to another's. Blocking."""

from collections.abc import Sequence
from pathlib import Path

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images.builds import ImageError

_CHUNK = 1 << 20
_PACKING_SEC = 3600  # the daemon writes the whole archive before it answers


def save_images(names: Sequence[str], file: Path) -> None:
    """Write images with the layers that they share into one tar file."""
    client = engine(_PACKING_SEC)
    with client.get(f"{client.base_url}/images/get", params={"names": list(names)}, stream=True) as answer:
        answer.raise_for_status()
        with file.open("wb") as out:
            for chunk in answer.iter_content(_CHUNK):
                out.write(chunk)


def load_images(file: Path) -> None:
    """Add the images of a file of `save_images`; they keep names and IDs."""
    with file.open("rb") as saved:
        for event in engine().load_image(saved) or ():
            if "error" in event:
                raise ImageError(f"cannot load images: {event['error']}")
