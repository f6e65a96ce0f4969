"""Tasks that a qualification found bad: a file in their folder, which training obeys."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from src.run.files import replace_text

QUARANTINE_FILE = "quarantine.txt"
_HEAD = "# Tasks that training leaves out: name, digest of what was checked, why. Made by: python -m src.tasks check\n"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """`digest`: of the task as it was found bad; "" = whatever it is."""

    name: str
    digest: str
    reason: str


def read_quarantine(folder: Path) -> dict[str, Quarantined]:
    """By name. A line is `NAME DIGEST REASON`, DIGEST may be `-`; lines that begin with # are comments."""
    file = folder / QUARANTINE_FILE
    if not file.is_file():
        return {}
    found: dict[str, Quarantined] = {}
    for line in file.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, digest, reason = (*line.split(maxsplit=2), "-", "")[:3]
            found[name] = Quarantined(name, digest.removeprefix("-"), reason)
    return found


def write_quarantine(folder: Path, bad: Iterable[Quarantined], good: Iterable[str]) -> int:
    """Add the bad ones, drop those that were checked and are not; how many there are. No file when there is none."""
    kept = {name: one for name, one in read_quarantine(folder).items() if name not in set(good)}
    kept |= {one.name: one for one in bad}
    file = folder / QUARANTINE_FILE
    if not kept:
        file.unlink(missing_ok=True)
        return 0
    lines = (f"{one.name} {one.digest or '-'} {' '.join(one.reason.split())}\n" for _, one in sorted(kept.items()))
    replace_text(file, _HEAD + "".join(lines))
    return len(kept)
