"""A checkpoint is there whole or not at all, whatever stops its saving; a sampler's leaves the device at once.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.save_checkpoint, save_sampler_checkpoint write to the final place. A
server killed there, or a full disk, leaves half a checkpoint that nobody deletes. Here it is written beside its place,
flushed, and renamed; what a failed save has written is taken away at once, what a killed one has at the next start
(api_restart). The ".probe" file that skyrl leaves beside every sampler checkpoint, for other hosts, goes too.
skyrl/tx/utils/models.py, save_safetensors slices every base weight and each layer's adapter on the device, one by one:
seconds, and memory for a second copy of the model. Here one program takes the adapter (engine_gather). With vLLM its
weights are handed over before the archive is written (handover).
"""

# pyright: reportMissingImports=false
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import peft
import safetensors.numpy
from skyrl.backends.jax import JaxBackendImpl
from skyrl.utils.log import logger

from repairs import engine_load, handover
from repairs.archives import pack
from repairs.engine_gather import Adapter, gather, tensors_of

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


def whole(place: Any, write: Callable[[Any], None], version: int | None = None) -> None:
    """Has `write` write to a new name beside `place`, then renames. Raises what writing raises; nothing is left then.

    `version`: the file's time of change, in nanoseconds, instead of now.
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
        if version is not None:
            os.utime(new, ns=(version, version))
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


class Clock:
    """Seconds of a save's parts, which healthz adds up as save_NAME_seconds."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.parts[name], self._last = now - self._last, now


def save_sampler_checkpoint(self: Any, output_path: Any, model_id: str, persist: bool = True) -> None:
    """Replaces JaxBackendImpl.save_sampler_checkpoint."""
    if not isinstance(output_path, Path):
        stock_save_sampler(self, output_path, model_id, persist=persist)
        return
    output_path.parent.mkdir(parents=True, exist_ok=True)
    folder, clock, version = os.environ.get(handover.FOLDER), Clock(), time.time_ns()
    adapter = gather(self, model_id, to_sample=folder is not None)
    clock.lap("gather")
    if folder is not None and adapter.is_finite:  # else who reads the archive says that it is not
        hand_over(Path(folder), handover.adapter_name(output_path, f"{version:x}"), self.base_model, adapter)
    clock.lap("handover")
    whole(output_path, lambda new: archive(self.base_model, adapter, new, clock), version)
    clock.lap("flush")
    remove(output_path.with_name(f"{output_path.name}.probe"))
    engine_load.load.add(saves=1, **{f"save_{name}_seconds": seconds for name, seconds in clock.parts.items()})
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in clock.parts.items())
    logger.info(f"Saved LoRA sampler checkpoint to {output_path}: {spent}")


def hand_over(folder: Path, name: str, base_model: str, adapter: Adapter) -> None:
    """To the API, which has vLLM load it while the archive is written."""
    tensors = tensors_of(adapter.rounded, adapter.config)

    def write(new: Path) -> None:
        (new / handover.TENSORS).write_bytes(safetensors.numpy.save(tensors))
        (new / handover.CONFIG).write_bytes(config_of(base_model, adapter, tensors))

    if not handover.offer(folder, name, sum(part.nbytes for part in tensors.values()), write):
        logger.warning(f"No room in {folder}: vLLM gets {name} later, from its archive")


def archive(base_model: str, adapter: Adapter, place: Path, clock: Clock) -> None:
    tensors = tensors_of(adapter.exact, adapter.config)
    data = memoryview(safetensors.numpy.save(tensors))
    pack(place, {handover.TENSORS: data, handover.CONFIG: config_of(base_model, adapter, tensors)})
    clock.lap("archive")


def config_of(base_model: str, adapter: Adapter, tensors: Iterable[str]) -> bytes:
    """adapter_config.json. `tensors`: names."""
    given = adapter.config
    with tempfile.TemporaryDirectory() as folder:
        made = peft.LoraConfig(base_model_name_or_path=base_model, r=given.rank, lora_alpha=given.alpha)
        made.save_pretrained(folder)
        handover.complete_config(Path(folder), base_model, tensors)
        return Path(folder, handover.CONFIG).read_bytes()


def apply() -> None:
    JaxBackendImpl.save_checkpoint = save_checkpoint
    JaxBackendImpl.save_sampler_checkpoint = save_sampler_checkpoint
