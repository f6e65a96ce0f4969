"""What the images of a corpus need: how many, bytes, hours, as far as those that were made on this machine tell."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from harbortrainer.docker.images.inventory import missing_images, missing_note, names_of
from harbortrainer.docker.images.layers import made
from harbortrainer.durable.facts import fact

LEAST = 3  # images that were made, from which others are estimated
GB = 1000**3
_STEP = re.compile(r"^\s*(?:FROM|RUN|COPY|ADD|WORKDIR)\b.*$", re.M | re.I)


def needs_note(tasks: Sequence[Path], at_once: int, ahead: int) -> list[str]:
    """Return lines on images that are missing here, of which `at_once` are made at once, those of `ahead` tasks early.

    [] = none is missing. Blocking. Raises docker.errors.DockerException.
    """
    lacking = missing_images(tasks)
    lines = missing_note({task.name: kind for task, kind in lacking.items()})
    if not lines:
        return []
    # one name of each image of a task: many tasks may share one
    name_of = {task: names[-1] for task in tasks if (names := names_of(task))}
    names, missing = {*name_of.values()}, {name for task, name in name_of.items() if lacking[task]}
    different = len({step for task in tasks for step in steps(task)})
    line = f"task images: {len(names)} for {len(tasks)} tasks, of {different} different steps, {len(missing)} missing"
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


def steps(task: Path) -> list[str]:
    """Return a digest of each step of the task's Dockerfile with all before it; files that are copied count by name."""
    return fact(task, "steps", partial(_steps, task))


def _steps(task: Path) -> list[str]:
    file, chain, found = task / "environment" / "Dockerfile", "", list[str]()
    for line in _STEP.findall(re.sub(r"\\[ \t]*\n", " ", file.read_text(errors="replace"))) if file.is_file() else ():
        chain = hashlib.sha256(f"{chain}\n{line}".encode()).hexdigest()[:12]
        found.append(chain)
    return found
