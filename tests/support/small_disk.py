"""Disks that are small enough to be filled: a folder's, and a Docker daemon's."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.own_daemon import OwnDaemon


class SmallDisk:
    """A file system of its own, that a test fills and empties again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, but: int = 0) -> None:
        """To the last block, then frees `but` bytes. Safe to repeat."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        os.truncate(self._ballast, self._ballast.stat().st_size - but)

    def empty(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(mib: int) -> Iterator[SmallDisk]:
    """Needs root."""
    with tempfile.TemporaryDirectory(prefix="ht-full-") as name, ExitStack() as undo:
        _run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", name)
        undo.callback(_run, "umount", "--lazy", name)
        yield SmallDisk(Path(name))


@contextmanager
def daemon_on_small_disk(image: str, mib: int) -> Iterator[OwnDaemon]:
    """A running daemon with `image`, its data on a file system of `mib` MiB of its own. Needs root."""
    with tempfile.TemporaryDirectory(prefix="ht-disk-") as name, ExitStack() as undo:
        folder = Path(name)
        disk, data = folder / "disk", folder / "data"
        data.mkdir()
        with disk.open("wb") as file:
            file.truncate(mib * 1024**2)
        _run("mkfs.ext4", "-q", "-F", str(disk))
        _run("mount", "-o", "loop", str(disk), str(data))
        undo.callback(_run, "umount", "--lazy", str(data))
        daemon = OwnDaemon(folder, data_root=data)
        undo.callback(daemon.stop)
        daemon.start()
        daemon.load(image)
        yield daemon


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
