"""A change that a container has made to a file of its image."""

from dataclasses import dataclass
from enum import StrEnum


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
