"""A change that a container has made to a file of its image."""

import re
from dataclasses import dataclass
from enum import StrEnum

from harbortrainer.docker.integrity.living import DEVICES

_MADE_ANEW = re.compile(
    rf"/(tests|logs/(?:verifier|\.before-[0-9a-f]+)|dev/(?:{DEVICES})|proc|sys)(/.*)?"
    "|/logs(/agent|/artifacts)?|/dev(/shm|/mqueue)?",
    re.DOTALL,
)
_OFTEN_CLEANED = re.compile("/(?:tmp|var|run|root|home|solution|logs/agent|logs/artifacts)/")


class ChangeKind(StrEnum):
    ADDED = "added"  # the image has nothing there
    CHANGED = "changed"  # content, kind or attributes
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, order=True)
class FileChange:
    """A change. `folder`: the container has a folder there. `stamp`: equal stamps = not written between two looks;
    None = none.

    A changed folder is no change; its entries are. `shallow`: a folder above a system path, to restore without entries.
    """

    path: str
    kind: ChangeKind
    folder: bool = False
    stamp: tuple[int, int] | None = None
    shallow: bool = False


def is_often_cleaned(path: str) -> bool:
    """Return whether it lies where files come and go beside all work."""
    return _OFTEN_CLEANED.match(path) is not None


def is_made_anew(path: str) -> bool:
    """Return whether verification makes it again, or it is no file of the container's layer."""
    return _MADE_ANEW.fullmatch(path) is not None
