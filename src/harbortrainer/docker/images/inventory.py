"""The images of tasks that the daemon has or lacks, and what the missing ones take. Blocking."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from harbortrainer.docker.daemon import answered, engine
from harbortrainer.docker.images.builds import is_here, tagged
from harbortrainer.docker.images.image import is_built, sources, task_reference
from harbortrainer.docker.images.layers import made
from harbortrainer.docker.images.origins import bases_key
from harbortrainer.docker.images.tmux_image import tmux_reference
from harbortrainer.durable.facts import fact

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


def _name(folder: Path, docker_image: str | None) -> str:
    """The image that trials would start from now; one that Docker lacks would be made first."""
    if not docker_image or (is_built(folder) and not is_here(docker_image) and is_here(task_reference(folder))):
        return task_reference(folder)
    return docker_image


LEAST = 3  # images that were made, from which others are estimated
GB = 1000**3


@answered()
def needs_note(tasks: Sequence[Path], at_once: int, ahead: int) -> list[str]:
    """Return lines on images that are missing here, of which `at_once` are made at once, those of `ahead` tasks early.

    [] = none is missing. Blocking. Raises docker.errors.DockerException, EnvironmentFault.
    """
    lacking = missing_images(tasks)
    lines = missing_note({task.name: kind for task, kind in lacking.items()})
    if not lines:
        return []
    # one name of each image of a task: many tasks may share one
    name_of = {task: names[-1] for task in tasks if (names := names_of(task))}
    names, missing = {*name_of.values()}, {name for task, name in name_of.items() if lacking[task]}
    line = f"task images: {len(names)} for {len(tasks)} tasks, {len(missing)} missing"
    known = {name: one for name, one in made().items() if name in names}
    if len(known) < LEAST:
        return [*lines, f"{line}; bytes and hours are known once {LEAST} of them were made here"]
    return [*lines, f"{line}; {_estimate(known, len(names), len(missing), at_once, min(ahead, len(names)))}"]


def _estimate(
    known: Mapping[str, tuple[float, Mapping[str, int]]], images: int, missing: int, at_once: int, ahead: int
) -> str:
    count = Counter(chain for _, parts in known.values() for chain in parts)
    sizes = {chain: size for _, parts in known.values() for chain, size in parts.items()}
    shared = sum(size for chain, size in sizes.items() if count[chain] > 1)
    each = fmean(sum(size for chain, size in parts.items() if count[chain] == 1) for _, parts in known.values())
    hours = missing * fmean(seconds for seconds, _ in known.values()) / at_once / 3600
    return (
        f"by the {len(known)} that were made here, about {(shared + images * each) / GB:.3g} GB in all "
        f"({shared / GB:.3g} GB shared, {each / GB:.3g} GB each) and {hours:.3g} hours, {at_once} at once; "
        f"images_gb must be above {(shared + ahead * each) / GB:.3g} for the {ahead} tasks ahead"
    )
