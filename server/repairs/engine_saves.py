"""A checkpoint is there whole or not at all, whatever stops its saving.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.save_checkpoint, save_sampler_checkpoint write to the final place. A
server killed there, or a full disk, leaves half a checkpoint that nobody deletes. Here it is written beside its place,
flushed, and renamed; what a failed save has written is taken away at once, what a killed one has at the next start
(api_restart). The ".probe" file that skyrl leaves beside every sampler checkpoint, for other hosts, goes too.
"""

# pyright: reportMissingImports=false
import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skyrl.backends.jax import JaxBackendImpl

stock_save = JaxBackendImpl.save_checkpoint
stock_save_sampler = JaxBackendImpl.save_sampler_checkpoint


PAUSE_SEC, QUIET_SEC, LIMIT_SEC = 0.1, 1.0, 10.0


def remove(path: Path) -> None:
    """A file or a folder, there or not."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Remove what a failed write left, until nothing comes again: its threads still make files and folders.

    What comes after LIMIT_SEC is removed by the next save in this folder, or by a restart.
    """
    quiet = began = time.monotonic()
    while (now := time.monotonic()) < min(quiet + QUIET_SEC, began + LIMIT_SEC):
        if path.exists():
            quiet = now
            with contextlib.suppress(OSError):  # a folder that fills meanwhile cannot be removed
                remove(path)
        time.sleep(PAUSE_SEC)


def whole(place: Any, write: Callable[[Any], None]) -> None:
    """Has `write` write to a new name beside `place`, then renames. Raises what writing raises; nothing is left then.

    A place in somebody's cloud storage is written to at once: there an object is whole or not there.
    """
    if not isinstance(place, Path):
        write(place)
        return
    new = place.with_name(f".{place.name}.new")
    for stray in place.parent.glob(".*.new"):  # one save at a time: they are of failed ones
        remove(stray)
    try:
        write(new)
        flush(new)
    except BaseException:
        discard(new)
        raise
    remove(place)
    os.replace(new, place)


def flush(path: Path) -> None:
    """To the disk: what is listed as saved survives a crash of the machine."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def save_checkpoint(self: Any, output_path: Any, model_id: str) -> None:
    whole(output_path, lambda new: stock_save(self, new, model_id))


def save_sampler_checkpoint(self: Any, output_path: Any, model_id: str, persist: bool = True) -> None:
    whole(output_path, lambda new: stock_save_sampler(self, new, model_id, persist=persist))
    if isinstance(output_path, Path):
        remove(output_path.with_name(f"{output_path.name}.probe"))


def apply() -> None:
    JaxBackendImpl.save_checkpoint = save_checkpoint
    JaxBackendImpl.save_sampler_checkpoint = save_sampler_checkpoint
