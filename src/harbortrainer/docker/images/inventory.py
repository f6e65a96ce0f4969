"""The images of tasks that the daemon has or lacks; copies of them. Blocking."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images.builds import ImageError, is_here, tagged
from harbortrainer.docker.images.image import is_built, sources, task_reference
from harbortrainer.docker.images.origins import bases_key
from harbortrainer.docker.images.tmux_image import tmux_reference
from harbortrainer.durable.facts import fact

_CHUNK = 1 << 20
_NAMED = 3  # tasks


def image_ids(task_dirs: Sequence[Path]) -> dict[str, str]:
    """Return the images of tasks by name, each with its ID; "" = Docker lacks it. Blocking.

    An image to which tmux was added comes after the one that it is made of.
    """
    found: dict[str, str] = {}
    for source in dict.fromkeys(source for task in task_dirs for source, _ in sources(task)):
        name = _name(*source)
        found[name] = _id(name)
        if found[name] and (added := _id(with_tmux := tmux_reference(found[name]))):
            found[with_tmux] = added
    return found


def _id(name: str) -> str:
    return str(engine().inspect_image(name)["Id"]) if is_here(name) else ""


def missing_images(task_dirs: Sequence[Path]) -> dict[Path, str]:
    """Return by task what its trials need first: "to pull", "to build", or both; "" = nothing. One request for all."""
    here = {tag for image in engine().images() for tag in image["RepoTags"] or ()}
    found: dict[Path, str] = {}
    for task in task_dirs:
        parts = _of(task)
        lacking = {image for image, built in parts if not {tagged(image or built), built} & here}
        found[task] = " and ".join(["to pull"] * any(lacking) + ["to build"] * (None in lacking))
    return found


def names_of(task: Path) -> list[str]:
    """Return all names that the images of a task may have here, but for those with tmux. Blocking."""
    return list(dict.fromkeys(name for image, built in _of(task) for name in (image and tagged(image), built) if name))


def has_images(task: Path) -> bool:
    """Return whether Docker has all images of a task. Blocking."""
    return all(any(is_here(name) for name in (image, built) if name) for image, built in _of(task))


def _of(task: Path) -> list[tuple[str | None, str]]:
    return fact(task, f"images {bases_key()}", partial(_parts, task))


def _parts(task: Path) -> list[tuple[str | None, str]]:
    """For each image of a task: its name, None = built; the name of the one that is, or would be, built, or ""."""
    return [
        (image, task_reference(folder) if not image or is_built(folder) else "") for (folder, image), _ in sources(task)
    ]


def missing_note(missing: Mapping[str, str]) -> list[str]:
    """Return a line on the tasks with something in `missing`; [] = none has."""
    kinds = {kind: [task for task, one in missing.items() if one == kind] for kind in dict.fromkeys(missing.values())}
    parts = [
        f"{len(tasks)} {kind} ({', '.join(tasks[:_NAMED])}{', …' * (len(tasks) > _NAMED)})"
        for kind, tasks in kinds.items()
        if kind
    ]
    return [f"tasks whose images are missing here: {', '.join(parts)}"] if parts else []


def save_images(names: Sequence[str], file: Path) -> None:
    """Write images with the layers that they share into one tar file."""
    client = engine()
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


def _name(folder: Path, docker_image: str | None) -> str:
    """The image that trials would start from now; one that Docker lacks would be made first."""
    if not docker_image or (is_built(folder) and not is_here(docker_image) and is_here(task_reference(folder))):
        return task_reference(folder)
    return docker_image
