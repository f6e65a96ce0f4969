"""A folder through which the engine hands an adapter to vLLM while its archive is still being written.

The engine writes a folder there and renames it (`offer`); the API finds it by name (`Adapters`, vllm_adapters), has
vLLM load it, and deletes it. Its weights are valid once the archive has the version that is part of the name: a save
that fails leaves a folder that no sample names. Where there is no room the API unpacks the archive, which takes longer.
Nothing of skyrl is imported here: both processes and the unit tests use it.
"""

import json
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from safetensors import SafetensorError

FOLDER = "SKYRL_TX_HANDOVER"  # in the environment of API and engine; not set without vLLM
TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"  # names of files that peft and vLLM read
MOST = 12  # folders there at once: those that vLLM has registered, and some that leave or come
SPARE = 4  # an adapter may take a quarter of what is free
MEMORY = Path("/dev/shm")  # a file system in memory
MEMORY_LEAST = 4 << 30  # bytes free there; a container often has 64 MiB
DAMAGED = (EOFError, zlib.error, tarfile.TarError, SafetensorError)  # what reading a damaged checkpoint raises
LONGEST_NAME = 80  # characters of a checkpoint's name within an adapter's


def make_folder(state: Path, memory: Path = MEMORY, least: int = MEMORY_LEAST) -> Path:
    """A new folder's name for this process: in memory where there is room, else beside the server's files.

    What processes that were killed have left in memory is removed. sampler.py removes it when the server has ended.
    """
    mark = f"harbortrainer-{zlib.crc32(bytes(state)):08x}-"
    for left in memory.glob(f"{mark}*"):
        if not Path("/proc", left.name.removeprefix(mark)).exists():
            shutil.rmtree(left, ignore_errors=True)
    if os.access(memory, os.W_OK) and room(memory) >= least:
        return memory / f"{mark}{os.getpid()}"
    return state / "vllm-handed"


def version(file: Path) -> str:
    """Differs for every file ever saved under a name. Raises FileNotFoundError."""
    return f"{file.stat().st_mtime_ns:x}"


def adapter_name(archive: Path, version: str) -> str:
    """`archive`: MODEL_ID/sampler_weights/NAME.tar.gz; `version` differs for every file ever saved under a name."""
    name = archive.name.removesuffix(".tar.gz")[:LONGEST_NAME]
    return f"{archive.parent.parent.name}_{name}_{version}"


def offered(folder: Path, archive: Path, since: int) -> str | None:
    """The name of an adapter that was handed over for this archive in a version of `since` or later."""
    mine = re.compile(re.escape(adapter_name(archive, "")) + "([0-9a-f]+)")
    try:
        found = [match for name in os.listdir(folder) if (match := mine.fullmatch(name))]
    except FileNotFoundError:
        return None
    return next((match[0] for match in found if int(match[1], 16) >= since), None)


def offer(folder: Path, name: str, size: int, write: Callable[[Path], None]) -> bool:
    """Has `write` fill a new folder of about `size` bytes, then gives it its name. False, and nothing: no room.

    Raises what `write` raises but OSError: a full or a missing disk is no room.
    """
    new = folder / f".{name}.new"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for stray in folder.glob(".*.new"):  # of a process that was killed
            shutil.rmtree(stray, ignore_errors=True)
        if len(os.listdir(folder)) >= MOST or SPARE * size > room(folder):
            return False
        new.mkdir()
        write(new)
        os.replace(new, folder / name)
    except OSError:
        return False
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return True


def room(folder: Path) -> int:
    """Bytes that are free in this file system and, as it may be one in memory, in memory."""
    found = os.statvfs(folder)
    return min(found.f_bavail * found.f_frsize, free_memory())


def free_memory() -> int:
    """Bytes that Linux could give to programs now."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def complete_config(folder: Path, base_model: str, tensors: Iterable[str]) -> None:
    """Adds what vLLM requires of adapter_config.json, where it lacks; `tensors`: their names."""
    file = folder / CONFIG
    config = json.loads(file.read_text())
    config["base_model_name_or_path"] = base_model
    if not config.get("target_modules"):  # a checkpoint of an earlier version, or written with peft
        config["target_modules"] = sorted({key.split(".lora_")[0].rsplit(".", 1)[-1] for key in tensors})
    file.write_text(json.dumps(config))
