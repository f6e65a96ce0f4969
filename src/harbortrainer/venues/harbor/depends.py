"""depends.json in the folder of a rewarded trial: the files and services that its reward came from."""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from harbortrainer.durable.files import write_json

DEPENDS = "depends.json"
MOST = 200  # files, and services, of one trial that are kept


@dataclass(frozen=True, slots=True)
class Depends:
    """Causes of a reward. `files`: paths that the container changed and verification opened; `services`: "tcp 8080
    nginx", "process NAME".

    `number`: of both, before they were cut; `watched`: False = what verification opened is not known.
    """

    files: tuple[str, ...]
    services: tuple[str, ...]
    number: int
    watched: bool

    @classmethod
    def of(cls, files: Iterable[str], services: Iterable[str], *, first: Collection[str] = (), watched: bool) -> Self:
        """Sort both, those of `first` first, and cut them to MOST each."""
        paths, named = sorted(set(files), key=lambda path: (path not in first, path)), sorted(set(services))
        return cls(tuple(paths[:MOST]), tuple(named[:MOST]), len(paths) + len(named), watched)


def write(folder: Path, depends: Depends) -> None:
    """Write the file into a trial's folder. Raises DiskFault."""
    write_json(folder / DEPENDS, asdict(depends))


def read_names(folder: Path) -> tuple[str, ...] | None:
    """Read files, then services, of a trial; None = it has no such file, or what verification opened is not known."""
    found: dict[str, Any] = json.loads(file.read_bytes()) if (file := folder / DEPENDS).is_file() else {}
    return (*found["files"], *found["services"]) if found.get("watched") else None
