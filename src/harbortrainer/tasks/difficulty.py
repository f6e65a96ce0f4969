"""What `tasks measure` found of tasks, by their digests: chooses training tasks by it, names parts of its numbers."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harbortrainer.errors import UserError
from harbortrainer.tasks.task import Task

BAND = 0.1, 0.9  # of mean rewards, without another
_WITH_BAND = re.compile(r"(.+)@([0-9]*\.?[0-9]+),([0-9]*\.?[0-9]+)")
FILE = "difficulty.json"  # in a run directory: the copy that a resume reads
_PARTS, _NONE = ("0.00-0.25", "0.25-0.50", "0.50-0.75", "0.75-1.00"), "not-measured"

Measured = Mapping[str, float | None]  # digest of a task -> mean reward, None = no trial was graded


def file_and_band(given: str) -> tuple[Path, tuple[float, float]]:
    """Return the parts of FILE[@LOW,HIGH]. Raises UserError for a band that is none."""
    found = _WITH_BAND.fullmatch(given)
    if found is None:
        return Path(given).expanduser(), BAND
    low, high = float(found[2]), float(found[3])
    if not 0 <= low < high <= 1:
        raise UserError(f"difficulty={given}: give two mean rewards from 0 to 1, the lower one first")
    return Path(found[1]).expanduser(), (low, high)


def read_measured(file: Path) -> dict[str, float | None]:
    """Raises UserError for a file that cannot be read, or that `tasks measure` did not write."""
    try:
        tasks = json.loads(file.read_bytes())["tasks"]
        return {one["digest"]: None if one["reward"] is None else float(one["reward"]) for one in tasks.values()}
    except OSError as error:
        raise UserError(f"difficulty={file}: cannot be read ({error.strerror}); write it with tasks measure") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"difficulty={file}: not written by tasks measure; name the out=FILE of that command") from None


def labelled(tasks: Sequence[Task], measured: Measured) -> list[Task]:
    """Return the tasks with the part of the scale that each was measured in."""
    return [replace(task, difficulty=_part(measured.get(task.digest))) for task in tasks]


def within(tasks: Sequence[Task], measured: Measured, band: tuple[float, float]) -> tuple[list[Task], str]:
    """Get tasks whose mean reward is within the band, or unknown; one line on the others. Raises UserError for none."""
    low, high = band
    sides = [_side(measured.get(task.digest), band) for task in tasks]
    why, kept = Counter(sides), [task for task, side in zip(tasks, sides, strict=True) if side in ("inside", "unknown")]
    counts = f"{why['below']} below, {why['above']} above"
    if not kept:
        raise UserError(f"difficulty: no training task is from {low:g} to {high:g} ({counts}); give FILE@LOW,HIGH")
    unknown = f"; {why['unknown']} were not measured, or have changed since, and stay" * bool(why["unknown"])
    line = f"difficulty: {why['inside']} of {len(tasks)} training tasks are from {low:g} to {high:g} ({counts})"
    return kept, line + unknown


def _side(reward: float | None, band: tuple[float, float]) -> str:
    if reward is None:
        return "unknown"
    return "below" if reward < band[0] else "above" if reward > band[1] else "inside"


def _part(reward: float | None) -> str:
    return _NONE if reward is None else _PARTS[min(max(int(reward * len(_PARTS)), 0), len(_PARTS) - 1)]
